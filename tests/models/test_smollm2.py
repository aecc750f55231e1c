"""SmolLM2's file: out of a package, out of GGUF, into a folder that transformers reads."""

import hashlib
import os
import sys
import zipfile

import pytest
import torch

from recipes import smollm2
from recipes.smollm2 import recipe
from recipes.smollm2.convert import convert
from recipes.smollm2.recipe import TargetRecipe
from resispec.errors import InvalidInput
from resispec.models import load_pair
from resispec.packages import WHEELS, Package, fetched
from tests.models.toy_smollm2 import TEXT, toy_pair, write_quantised

CONTENT = b"one line of a file\n" * 9999
OTHER = Package("other-pack", "1.2", "other_pack/toy.txt", "0" * 64)
PACKAGE = Package("toy-pack", "1.2", "toy_pack/data/toy.txt", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, no wheels but those that a test gives, and pip without an index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv(WHEELS, raising=False)
    for name, value in (
        ("RESISPEC_CACHE", tmp_path / "cache"),
        ("PIP_NO_INDEX", 1),
        ("PIP_FIND_LINKS", ""),
    ):
        monkeypatch.setenv(name, str(value))
    return tmp_path / "cache"


def write_wheel(folder, package=PACKAGE, content=CONTENT):
    """A wheel that pip takes for one of the package."""
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{package.stem}py3-none-any.whl"
    about = f"{package.stem}".removesuffix("-") + ".dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(package.member, content)
        archive.writestr(
            f"{about}/METADATA",
            f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n",
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return wheel


# Packages


def test_a_file_comes_from_a_wheel_a_folder_itself_pip_or_the_cache(cache, tmp_path, monkeypatch):
    wheel = write_wheel(tmp_path / "wheels")
    (tmp_path / "bare").mkdir()
    bare = tmp_path / "bare" / "toy.txt"
    bare.write_bytes(CONTENT)
    for number, place in enumerate((wheel, wheel.parent, bare, bare.parent)):
        monkeypatch.setenv("RESISPEC_CACHE", str(cache / str(number)))
        monkeypatch.setenv(WHEELS, str(place))
        assert fetched(PACKAGE).read_bytes() == CONTENT
    monkeypatch.delenv(WHEELS)
    monkeypatch.setenv("RESISPEC_CACHE", str(cache / "pip"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    path = fetched(PACKAGE)
    assert path.read_bytes() == CONTENT and path.name == "toy.txt"
    wheel.unlink()
    assert fetched(PACKAGE) == path
    assert "toy_pack" not in sys.modules and not list(cache.rglob("*.whl"))


@pytest.mark.usefixtures("cache")
def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv(WHEELS, str(write_wheel(tmp_path / "wheels")))
    path = fetched(PACKAGE)
    path.write_bytes(CONTENT[:-1] + b"!")
    assert fetched(PACKAGE).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("packed", "spoil", "suffix", "message"),
    [
        (
            (PACKAGE, CONTENT + b"more"),
            bytes,
            ".whl",
            "is another file than the pinned one: SHA-256",
        ),
        (
            (OTHER, CONTENT),
            bytes,
            ".whl",
            "has no toy_pack/data/toy.txt; it is no wheel of toy-pack",
        ),
        (
            (PACKAGE, CONTENT),
            lambda it: it[:80] + b"damaged!!!" + it[90:],
            ".whl",
            "whl cannot be read .",
        ),
        (
            (PACKAGE, CONTENT),
            lambda it: it[:100],
            ".whl",
            "cannot be read .File is not a zip file.",
        ),
        ((PACKAGE, CONTENT), bytes, ".txt", "toy_pack.* is another file than the pinned one"),
    ],
)
def test_another_or_a_damaged_file_is_not_kept(
    packed, spoil, suffix, message, cache, tmp_path, monkeypatch
):
    wheel = write_wheel(tmp_path / "made", *packed)
    (tmp_path / f"{PACKAGE.stem}py3-none-any{suffix}").write_bytes(spoil(wheel.read_bytes()))
    monkeypatch.setenv(WHEELS, str(tmp_path))
    with pytest.raises(InvalidInput, match=f"^.*{message}.*$"):
        fetched(PACKAGE)
    assert not [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.usefixtures("cache")
def test_without_an_index_pips_reason_and_the_ways_out_are_named(tmp_path, monkeypatch):
    write_wheel(tmp_path / "wheels", OTHER)
    monkeypatch.setenv(WHEELS, str(tmp_path / "wheels"))  # it has another package's
    reason = r"No matching distribution found for toy-pack==1.2"
    ways_out = "connect to an index of packages, or set RESISPEC_WHEELS to a folder with its wheel"
    with pytest.raises(InvalidInput, match=rf"^package .*\(pip: {reason}\); ways out: {ways_out}$"):
        fetched(PACKAGE)
    monkeypatch.setenv(WHEELS, str(tmp_path / "absent"))
    with pytest.raises(
        InvalidInput, match="^RESISPEC_WHEELS is .*absent, which does not exist; allowed:"
    ):
        fetched(PACKAGE)


# Conversion


@pytest.fixture(scope="module")
def tied_pair(tmp_path_factory):
    """A pair whose head is its embeddings; no test changes it."""
    return toy_pair(tmp_path_factory.mktemp("tied") / "target")


def converted(pair, folder, monkeypatch):
    """The pair of the file that was written from a pair, and the facts about that."""
    facts = convert(write_quantised(pair, folder / "toy.gguf", monkeypatch), folder / "converted")
    return load_pair(str(folder / "converted"), None), facts


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_quantised_file_becomes_the_model_that_it_was_written_from(
    is_tied, tied_pair, tmp_path, monkeypatch
):
    pair = tied_pair if is_tied else toy_pair(tmp_path / "target", is_tied=False)
    found, facts = converted(pair, tmp_path, monkeypatch)
    expected, weights = pair.target.module.state_dict(), found.target.module.state_dict()
    assert expected.keys() == weights.keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in expected.items())
    config = found.target.module.config
    assert config.tie_word_embeddings is is_tied and config.rope_parameters["rope_theta"] == 100_000
    assert facts["parameters"] == pair.target.module.num_parameters()


def test_the_tokenizer_its_template_and_the_end_token_come_along(tied_pair, tmp_path, monkeypatch):
    found, _ = converted(tied_pair, tmp_path, monkeypatch)
    texts = [
        "12345 and  3.14\n\n\tx\u00e9\u4e2d\U0001f600",
        " <|im_start|>user\nhi<|im_end|> x <file_sep>",
    ]
    for text in (TEXT, *texts, ""):
        ids = tied_pair.tokenizer.encode(text)
        assert found.tokenizer.encode(text) == ids and found.tokenizer.decode(ids) == text
    chat = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert found.tokenizer.decode(found.tokenizer.encode_chat("hi")) == chat
    assert found.tokenizer.encode_chat("hi")[0] == 1
    assert found.end_token_ids == {2} and found.tokenizer.eos_token_id == 2
    assert found.target.context == found.tokenizer.inner.model_max_length == 128


def test_a_missing_gguf_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InvalidInput, match=r"not installed: pip install 'resispec\[harness\]'$"):
        convert(tmp_path / "toy.gguf", tmp_path / "converted")


def test_the_pair_is_the_package_s_file_converted(cache, tied_pair, tmp_path, monkeypatch):
    path = write_quantised(tied_pair, tmp_path / "toy.gguf", monkeypatch)
    content = path.read_bytes()
    package = Package("toy-pack", "1.2", "toy_pack/toy.gguf", hashlib.sha256(content).hexdigest())
    monkeypatch.setenv(WHEELS, str(write_wheel(tmp_path / "wheels", package, content)))
    monkeypatch.setattr(recipe, "TARGET", TargetRecipe(package))
    pair = smollm2.load_pair(fingerprint=smollm2.pair_fingerprint())
    assert pair.draft is None and pair.end_token_ids == {2}
    assert (cache / recipe.TARGET.key() / "model.safetensors").is_file()
