"""Sweeps as docs/sweeps.md has them, each run on toy cells, and Hydra's syntax."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from toy_runs import messages, run, run_apart, save_toys, toy_overrides
from toy_slurm import stand_in_for_slurm

from analysis import cells as cells_script
from experiments.configuration.schema import CONF
from experiments.configuration.sweeps import values
from experiments.plan import cells_of, parts_of
from resispec.errors import InvalidInput

PAGE = (CONF.parent / "docs" / "sweeps.md").read_text()


def commands(title: str) -> list[list[str]]:
    """The words after `python -m experiments.run` of a section's commands."""
    [section] = re.findall(rf"^## {title}\n(.*?)(?=^## )", PAGE, re.M | re.S)
    lines = [
        line for block in re.findall(r"^```\n(.*?)^```$", section, re.M | re.S) for line in block.splitlines()
    ]
    assert all(line.startswith("python -m experiments.run ") for line in lines)
    return [shlex.split(line)[3:] for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def toy(folder, tmp_path):
    """Overrides of a toy cell of one prompt."""
    return [*toy_overrides(folder, tmp_path / "results"), "num_prompts=1", "sampling.max_new_tokens=3"]


def labels(results: Path, *names: str) -> set[tuple[str, ...]]:
    """What the cells of the last sweep's plan are called, all of them done."""
    assert cells_script.main(["--results", str(results), "sweep"]) == 0
    frame = pd.read_csv(results / "embedded" / "results.csv", dtype=dict.fromkeys(names, str))
    assert set(frame.status) == {"done"}
    return set(frame[list(names)].itertuples(index=False, name=None))


def test_trees(toy, tmp_path):
    sweep, complete, chain = commands("Trees")
    assert run(*toy, *sweep).returncode == 0
    trees = ("d7b2", "d5b3", "d4b5", "d3b11")
    expected = {(tree, verifier) for tree in trees for verifier in ("standard", "resispec")}
    assert labels(tmp_path / "results", "tree", "verifier") == expected
    for command, names in (
        (complete, {f"complete(branching={b}, depth=4)" for b in (2, 3, 4)}),
        (chain, {"chain(num_drafted=2)", "chain", "chain(num_drafted=8)"}),  # four are those of its file
    ):
        assert {cell.labels["tree"] for cell in cells_of([*toy, *command])} == names
        assert run(*toy, *command).returncode == 0


def test_a_temperature_grid_and_its_plot(toy, tmp_path, monkeypatch, capsys):
    [sweep] = commands("A temperature grid")
    assert run(*toy, *sweep).returncode == 0
    expected = {(t, v) for t in ("0.2", "0.4", "0.6", "0.8", "1.0") for v in ("standard", "resispec")}
    assert labels(tmp_path / "results", "temperature", "verifier") == expected
    run(*toy, "tree=chain", "temperature=0.3")  # another sweep leaves the first one's plan as it is
    assert len(labels(tmp_path / "results", "temperature", "tree", "verifier")) == 11
    [recipe] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    exec(compile(recipe, "docs/sweeps.md", "exec"), {})
    assert (tmp_path / "temperature.png").stat().st_size > 1000
    table = capsys.readouterr().out
    assert "0.6" in table and "0.3" not in table and "resispec" in table


def test_a_verifier_of_ones_own_on_every_tree(toy, tmp_path):
    [sweep] = commands("A verifier of your own on every tree")
    rule = tmp_path / "my_rule.py"
    rule.write_text("from resispec.verifiers.standard import Standard as MyRule\n")
    assert run(*toy, *(word.replace("my_rule.py", str(rule)) for word in sweep)).returncode == 0
    found = labels(tmp_path / "results", "tree", "verifier")
    assert {tree for tree, _ in found} == {"d3b11", "d4b4", "d4b5", "d5b3", "d7b2"}
    own = f"custom(name={tmp_path.name}/my_rule.py:MyRule)"
    assert len(found) == 10 and {verifier for _, verifier in found} == {own, "standard"}
    frame = pd.read_csv(tmp_path / "results" / "embedded" / "results.csv").set_index("verifier")
    gains = frame.accepted_length_gain  # over the standard rule, which this rule is
    assert gains[own].tolist() == [1.0] * 5 and gains["standard"].isna().all()


def test_hydra_s_own_syntax(toy, tmp_path):
    [sweep] = commands("Hydra's syntax")
    assert run("-m", *toy, *sweep).returncode == 0
    found = labels(tmp_path / "results", "tree", "verifier", "seed")
    assert {tree for tree, _, _ in found} == {"chain", "d3b11", "d4b4", "d4b5", "d5b3"}
    assert len(found) == 20 and {seed for _, _, seed in found} == {"0", "1"}


def test_artefacts_together(toy, tmp_path):
    together, glob, slice_ = commands("Artefacts")
    assert [part.name for part in parts_of(together)] == ["table1", "table4"]
    [override] = OverridesParser.create().parse_overrides(glob[:1])  # test_docs.py composes all of it
    assert values(override) == sorted(path.stem for path in (CONF / "experiment").glob("figure*"))
    done = run(*slice_, *toy, "decoder=specinfer")
    assert done.returncode == 0, done.stderr
    plan = json.loads((tmp_path / "results" / "embedded" / "plans" / "table1.json").read_text())
    assert [cell["labels"].get("audit") for cell in plan["cells"]] == [None, True]


def test_a_slurm_array(toy, tmp_path, monkeypatch):
    [sweep] = commands("A Slurm array")
    stand_in_for_slurm(tmp_path / "bin", monkeypatch)
    narrowed = [word.replace("glob(d*)", "glob(d4*)") for word in sweep]  # a job takes seconds to start
    done = run_apart(*narrowed, *toy, "temperature=1")
    assert done.returncode == 0, done.stderr
    assert "2 cells: 2 done" in messages(done.stderr)[-1]
    assert labels(tmp_path / "results", "tree") == {("d4b4",), ("d4b5",)}


def test_every_command_of_the_page_is_run():
    shown = re.findall(r"^python -m (\S+)(.*)$", PAGE, re.M)
    titles = ("Trees", "A temperature grid", "A verifier of your own on every tree", "Hydra's syntax")
    followed = sum(len(commands(title)) for title in (*titles, "Artefacts", "A Slurm array"))
    assert [module for module, _ in shown].count("experiments.run") == followed == 10
    assert {module for module, _ in shown} == {"experiments.run", "analysis.cells"}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("temperature=range(0.2,1.2,0.2)", [0.2, 0.4, 0.6, 0.8, 1.0]),
        ("temperature=range(1,3)", [1.0, 2.0]),
        ("temperature=sort(0.6,0.2,1,reverse=true)", [1.0, 0.6, 0.2]),
        ("temperature=tag(few,choice(0.5,1))", [0.5, 1.0]),
        ("temperature=1", [1.0]),
        ("seed=range(0,10,5)", [0, 5]),
        ("tree=choice(d5b3, d4b4)", ["d5b3", "d4b4"]),
        ("tree=glob(d*,exclude=[d5*,d3*])", ["d4b4", "d4b5", "d7b2"]),
    ],
)
def test_a_sweep_goes_over_what_hydra_says(override, expected):
    name = override.partition("=")[0]
    found = [cell.labels.get(name, cell.config[name]) for cell in cells_of([override])]
    assert found == expected and [type(value) for value in found] == [type(value) for value in expected]


def test_one_number_is_one_cell_however_it_is_written():
    ids = {cells_of([f"temperature={text}"])[0].cell_id for text in ("1", "1.0", "range(1,2)", "'1'")}
    assert len(ids) == 1


BAD = {
    "tree=glob(z*)": r"tree=glob\(z\*\) matches nothing; allowed: best_121, .*root",
    "dataset.name=glob(a*)": r"glob\(\) is for options of a group; allowed: dataset, decoder",
    "temperature=range(5,1)": r"temperature=range\(5,1\) has no values; allowed: a,b, choice",
    "temperature=interval(0.1,1)": "an interval has no list of values; allowed: a,b, choice",
    "seed=1,range(3)": r"seed=1,range\(3\): a sweep among values; allowed: ",
    "profile=embedded,paper": "profile has several values, embedded, paper; allowed: one for a command",
    "experiment=glob(z*)": r"experiment=glob\(z\*\) matches nothing; allowed: figure1, .*frontier, .*table5",
    "experiment=table1,tabel4": "unknown experiment 'tabel4'; did you mean table4",
}


@pytest.mark.parametrize("override", BAD)
def test_a_sweep_over_nothing_is_refused_in_one_line(override):
    with pytest.raises(InvalidInput, match=BAD[override]) as caught:
        cells_of([override])
    assert "\n" not in str(caught.value)
