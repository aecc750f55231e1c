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
from toy_runs import messages, run, run_apart
from toy_slurm import stand_in_for_slurm

from analysis import cells as cells_script
from analysis import table1
from experiments.grid import cells_of, parts_of, values
from experiments.schema import CONF

PAGE = (CONF.parent / "docs" / "sweeps.md").read_text()


def commands(title: str) -> list[list[str]]:
    """The words after `python -m experiments.run` of a section's commands."""
    [section] = re.findall(rf"^## {title}\n(.*?)(?=^## )", PAGE, re.M | re.S)
    blocks = re.findall(r"^```\n(.*?)^```$", section, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("python -m experiments.run ") for line in lines)
    return [shlex.split(line)[3:] for line in lines]


@pytest.fixture
def small(toy):
    """Overrides of a toy cell of one prompt."""
    return [*toy, "num_prompts=1", "sampling.max_new_tokens=3"]


def labels(results: Path, *names: str) -> set[tuple[str, ...]]:
    """What the cells of the last sweep's plan are called, all of them done."""
    assert cells_script.main(["--results", str(results), "sweep"]) == 0
    frame = pd.read_csv(results / "embedded" / "results.csv", dtype=dict.fromkeys(names, str))
    assert set(frame.status) == {"done"}
    return set(frame[list(names)].itertuples(index=False, name=None))


def test_trees(small, tmp_path):
    sweep, complete, chain = commands("Trees")
    assert run(*small, *sweep).returncode == 0
    trees = ("d7b2", "d5b3", "d4b5", "d3b11")
    expected = {(tree, verifier) for tree in trees for verifier in ("standard", "resispec")}
    assert labels(tmp_path / "results", "tree", "verifier") == expected
    for command, names in (
        (complete, {f"complete(branching={b}, depth=4)" for b in (2, 3, 4)}),
        (chain, {"chain(num_drafted=2)", "chain", "chain(num_drafted=8)"}),  # four are those of its file
    ):
        assert {cell.labels["tree"] for cell in cells_of([*small, *command])} == names
        assert run(*small, *command).returncode == 0


def test_a_temperature_grid_and_its_plot(small, tmp_path, monkeypatch, capsys):
    [sweep] = commands("A temperature grid")
    assert run(*small, *sweep).returncode == 0
    expected = {(t, v) for t in ("0.2", "0.4", "0.6", "0.8", "1.0") for v in ("standard", "resispec")}
    assert labels(tmp_path / "results", "temperature", "verifier") == expected
    run(*small, "tree=chain", "temperature=0.3")  # another sweep leaves the first one's plan as it is
    assert len(labels(tmp_path / "results", "temperature", "tree", "verifier")) == 11
    [recipe] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    exec(compile(recipe, "docs/sweeps.md", "exec"), {})
    assert (tmp_path / "temperature.png").stat().st_size > 1000
    table = capsys.readouterr().out
    assert "0.6" in table and "0.3" not in table and "resispec" in table


def test_a_verifier_of_ones_own_on_every_tree(small, tmp_path):
    [sweep] = commands("A verifier of your own on every tree")
    rule = tmp_path / "my_rule.py"
    rule.write_text("from resispec.verifiers.standard import Standard as MyRule\n")
    assert run(*small, *(word.replace("my_rule.py", str(rule)) for word in sweep)).returncode == 0
    found = labels(tmp_path / "results", "tree", "verifier")
    assert {tree for tree, _ in found} == {"d3b11", "d4b4", "d4b5", "d5b3", "d7b2"}
    own = f"custom(name={tmp_path.name}/my_rule.py:MyRule)"
    assert len(found) == 10 and {verifier for _, verifier in found} == {own, "standard"}
    frame = pd.read_csv(tmp_path / "results" / "embedded" / "results.csv").set_index("verifier")
    gains = frame.accepted_length_gain  # over the standard rule, which this rule is
    assert gains[own].tolist() == [1.0] * 5 and gains["standard"].isna().all()


def test_hydra_s_own_syntax(small, tmp_path):
    [sweep] = commands("Hydra's syntax")
    assert run("-m", *small, *sweep).returncode == 0
    found = labels(tmp_path / "results", "tree", "verifier", "seed")
    assert {tree for tree, _, _ in found} == {"chain", "d3b11", "d4b4", "d4b5", "d5b3"}
    assert len(found) == 20 and {seed for _, _, seed in found} == {"0", "1"}


def test_artefacts_together_and_a_slice(small, tmp_path, capsys):
    together, glob, slice_ = commands("Artefacts")
    assert [part.name for part in parts_of(together)] == ["table1", "table4"]
    [override] = OverridesParser.create().parse_overrides(glob[:1])  # test_docs.py composes all of it
    assert values(override) == sorted(path.stem for path in (CONF / "experiment").glob("figure*"))
    results, own = tmp_path / "results", tmp_path / "results" / "embedded" / "plans" / "table1.json"
    own.parent.mkdir(parents=True)
    own.write_text("the artefact's")
    done = run(*slice_, *small, "decoder=specinfer")
    assert done.returncode == 0, done.stderr
    [path] = own.parent.glob("table1@*.json")
    plan, digest = json.loads(path.read_text()), path.stem.partition("@")[2]
    assert [cell["labels"].get("audit") for cell in plan["cells"]] == [None, True]
    assert own.read_text() == "the artefact's"
    note, last = messages(done.stderr)
    assert note == f"note: a slice of table1, planned as {path.stem}; the plan of table1 stays"
    shown = f"python -m analysis.table1 --profile embedded --results {results} --slice {digest}"
    assert last.endswith(f"; next: {shown}")
    assert table1.main(shlex.split(shown)[3:]) == 0
    opening = f"**Slice {digest} of table1, not all of it: Table 1 of the paper"
    assert capsys.readouterr().out.startswith(opening)
    written = {file.name for file in (results / "embedded" / path.stem).iterdir()}
    assert written == {"table1.csv", "table1.md", "table1.tex"}
    assert not (results / "embedded" / "table1.csv").exists()


def test_a_slurm_array(small, tmp_path, monkeypatch):
    [sweep] = commands("A Slurm array")
    stand_in_for_slurm(tmp_path / "bin", monkeypatch)
    narrowed = [word.replace("glob(d*)", "glob(d4*)") for word in sweep]  # a job takes seconds to start
    done = run_apart(*narrowed, *small, "temperature=1")
    assert done.returncode == 0, done.stderr
    assert "2 cells: 2 done" in messages(done.stderr)[-1]
    assert labels(tmp_path / "results", "tree") == {("d4b4",), ("d4b5",)}


def test_every_command_of_the_page_is_run():
    shown = re.findall(r"^python -m (\S+)(.*)$", PAGE, re.M)
    titles = ("Trees", "A temperature grid", "A verifier of your own on every tree", "Hydra's syntax")
    followed = sum(len(commands(title)) for title in (*titles, "Artefacts", "A Slurm array"))
    assert [module for module, _ in shown].count("experiments.run") == followed == 10
    assert {module for module, _ in shown} == {"experiments.run", "analysis.cells"}
