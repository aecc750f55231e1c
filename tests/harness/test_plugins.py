"""Third parties' verifiers, data sets and decoders, from a package's entry points or a file."""

import pickle

import pytest

from experiments.audit import documents_of
from experiments.cell import build
from experiments.grid import cells_of
from experiments.worker import load_workload
from resispec import plugins
from resispec.decode import Decoder
from resispec.draws import Draws
from resispec.draws.iid import Iid
from resispec.errors import InvalidInput
from resispec.verifiers import Standard, available, get_rule, registry

MODULE = """
from __future__ import annotations
from dataclasses import dataclass

from resispec.data import Prompt
from resispec.decode import Decoder
from resispec.drafters import DraftModel
from resispec.verifiers import Standard


@dataclass
class Tickets:
    word: str = "ticket"

    def prompts(self, count):
        return [Prompt(str(number), f"{self.word} {number}") for number in range(count)]


def wide(tree, verifier):
    return Decoder(DraftModel(tree, "without_replacement"), verifier)


class Mine(Standard):
    pass
"""
ENTRIES = """
[resispec.verifiers]
mine = toy_plugin:Mine
standard = toy_plugin:Mine
[resispec.datasets]
tickets = toy_plugin:Tickets
broken = toy_plugin:Nothing
[resispec.decoders]
wide = toy_plugin:wide
"""


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """A package as pip installs it."""
    (tmp_path / "toy_plugin.py").write_text(MODULE)
    about = tmp_path / "toy_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "toy_plugin.py"


def test_a_package_s_verifier_is_known_by_name_and_takes_no_place_of_ours(caplog):
    """Defect: nothing said that the package's one is not used."""
    plugins._tell_hidden.cache_clear()
    assert "mine" in available() and available().count("standard") == 1
    assert (
        type(get_rule("mine")).__name__ == "Mine"
        and type(get_rule("standard")).__name__ == "Standard"
    )
    [warning] = caplog.messages
    assert (
        warning == "verifier 'standard' of a package (toy_plugin:Mine): not used, the name is ours"
    )


def test_a_name_that_two_packages_register_is_not_one_of_them(package):
    """Defect: the one that was found last was used, without a word."""
    other = package.parent / "other_plugin-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-plugin\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[resispec.verifiers]\nmine = other_plugin:Own\n")
    with pytest.raises(InvalidInput, match="^verifier 'mine' is registered by several") as refused:
        get_rule("mine")
    for words in ("toy-plugin (toy_plugin:Mine)", "other-plugin (other_plugin:Own)"):
        assert words in str(refused.value)


COPY = """
from resispec.draws.base import known
from resispec.draws.iid import Iid
from resispec.verifiers import register, Standard


@{decorator}
class Copy({base}):
    pass
"""


@pytest.mark.parametrize(
    ("decorator", "base", "message"),
    [
        ("register('standard')", "Standard", "'standard' of Copy is that of a known verifier, "),
        ("known", "Iid", "'iid' of Copy is that of a known kind of draws, resispec.draws.iid.Iid;"),
    ],
)
def test_a_name_of_ours_is_not_taken(decorator, base, message, tmp_path):
    """Defect: a copy of standard.py was the baseline of its own comparison."""
    (tmp_path / "copy.py").write_text(COPY.format(decorator=decorator, base=base))
    with pytest.raises(InvalidInput, match=f"the name {message}"):
        get_rule(f"{tmp_path}/copy.py:Copy")
    assert type(get_rule("standard")) is Standard and type(Draws.IID) is Iid


def test_two_classes_of_a_file_have_two_names(tmp_path):
    """Defect: the last one was measured under the name, without a word."""
    two = COPY.format(decorator="register('twin')", base="Standard")
    other = "@register('twin')\nclass Other(Standard):\n    pass\n"
    (tmp_path / "twins.py").write_text(f"{two}\n\n{other}")
    try:
        with pytest.raises(InvalidInput, match="the name 'twin' of Other is that of a known"):
            get_rule(f"{tmp_path}/twins.py:Copy")
    finally:
        registry._REGISTERED.pop("twin", None)


def test_a_file_may_be_loaded_again(tmp_path):
    (tmp_path / "again.py").write_text(COPY.format(decorator="register('again')", base="Standard"))
    try:
        first, second = (type(get_rule(f"{tmp_path}/again.py:Copy")) for _ in range(2))
        assert first is not second and type(get_rule("again")) is second
    finally:
        registry._REGISTERED.pop("again", None)


@pytest.mark.parametrize("place", ["", "{package}:"])
def test_data_sets_and_decoders_are_chosen_by_name_or_by_file(place, package):
    """By the command line alone; what they are called is in the cell's labels."""
    data, decoder = ("tickets", "wide") if not place else (f"{package}:Tickets", f"{package}:wide")
    overrides = ["dataset=custom", f"dataset.name={data}", "+dataset.word=bug", "tree=chain,d4b4"]
    first, second = cells_of(
        [*overrides, "decoder=custom", f"decoder.name={decoder}", "verifier=standard"]
    )
    tickets = build(first.config["dataset"])
    assert [prompt.text for prompt in tickets.prompts(2)] == ["bug 0", "bug 1"]
    assert pickle.loads(pickle.dumps(tickets)) == tickets
    made = build(second.config["decoder"])
    assert isinstance(made, Decoder) and made.drafter.topology.num_nodes == 85
    assert (
        str(first.labels["dataset"]).startswith("custom(name=") and first.cell_id != second.cell_id
    )


def test_what_has_the_name_of_ours_is_not_called_by_it_unless_it_is_ours():
    """Defect: a user's data set `gsm8k` was printed as GSM8K."""
    [cell] = cells_of(
        ["dataset=custom", "dataset.name=gsm8k", "decoder=custom", "decoder.name=sequoia",
         "verifier=custom", "verifier.name=standard"]
    )  # fmt: skip
    called = {group: str(cell.labels[group]) for group in ("dataset", "decoder", "verifier")}
    assert called["dataset"] == "custom(name=gsm8k)" and called["decoder"] == "custom(name=sequoia)"
    assert called["verifier"] == "standard"
    [other] = cells_of(["verifier=custom", "verifier.name=spec_hub"])  # a file of ours, and no name
    assert str(other.labels["verifier"]) == "custom(name=spec_hub)"


@pytest.mark.parametrize("given", ["count - 1", "2 * count"])
def test_a_data_set_gives_as_many_documents_as_it_is_asked_for(given, package, toy):
    """Defect: a cell of 64 prompts was done with 10, and one that ignores count measured all."""
    package.write_text(MODULE.replace("range(count)", f"range({given})"))
    words = [word for word in toy if not word.startswith("dataset")]
    [cell] = cells_of([*words, "dataset=custom", f"dataset.name={package}:Tickets"])
    for measured in (lambda: load_workload(cell.config, None), lambda: documents_of([cell.config])):
        with pytest.raises(InvalidInput, match=r"toy_plugin.py:Tickets gave [26] documents to pro"):
            measured()


def test_a_data_set_gives_every_document_an_id_of_its_own(package, toy):
    """Defect: of two documents with one id both had the category of the second."""
    package.write_text(MODULE.replace("str(number)", "str(0 * number)"))
    words = [word for word in toy if not word.startswith("dataset")]
    [cell] = cells_of([*words, "dataset=custom", f"dataset.name={package}:Tickets"])
    with pytest.raises(InvalidInput, match="gave [0-9]+ documents the id '0'; allowed: each its"):
        load_workload(cell.config, None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("dataset=custom dataset.name=nope", "unknown dataset 'nope'; known: broken, tickets"),
        (
            "dataset=custom dataset.name=broken",
            r"dataset 'broken' \(toy_plugin:Nothing\): AttributeError",
        ),
        ("dataset=custom dataset.name=tickets +dataset.size=3", "dataset 'tickets': .*'size'"),
        (
            "decoder=custom decoder.name=no.py:wide",
            "decoder file no.py does not exist; give path/to",
        ),
    ],
)
def test_what_cannot_be_made_is_one_line(overrides, message):
    [cell] = cells_of(overrides.split())
    with pytest.raises(InvalidInput, match=f"^{message}.*$"):
        build(cell.config["dataset"])
        build(cell.config["decoder"])
