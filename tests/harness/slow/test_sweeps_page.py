"""Sweeps of docs/sweeps.md, run on toy cells; test_docs.py composes every command of the page."""

import re
import shlex

import matplotlib as mpl
import pytest

from analysis import cells as cells_script
from experiments.composition import hydra_here
from experiments.explain import explained
from experiments.launcher import launch_of
from experiments.scheduler import run_cells
from experiments.schema import CONF
from resispec.errors import InvalidInput
from tests.harness.toy_runs import messages, run
from tests.toy_cells import write_artefact

PAGE = (CONF.parent / "docs" / "sweeps.md").read_text()


def commands(title):
    """The words after `resispec run` of a section's commands."""
    [section] = re.findall(rf"^## {title}\n(.*?)(?=^## )", PAGE, re.M | re.S)
    blocks = re.findall(r"^```\n(.*?)^```$", section, re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    assert all(line.startswith("resispec run ") for line in lines)
    return [shlex.split(line)[2:] for line in lines]


@pytest.fixture
def small(toy):
    """Overrides of a toy cell of one prompt."""
    return [*toy, "num_prompts=1", "sampling.max_new_tokens=3"]


def test_the_plot_of_a_temperature_grid(small, tmp_path, monkeypatch, capsys):
    [sweep] = commands("A temperature grid")
    assert run(*small, *sweep).returncode == 0
    assert cells_script.main(["--results", str(tmp_path / "results"), "sweep"]) == 0
    [recipe] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    exec(compile(recipe, "docs/sweeps.md", "exec"), {})
    assert (tmp_path / "temperature.png").stat().st_size > 1000
    table = capsys.readouterr().out
    assert "0.6" in table and "resispec" in table


def test_other_cells_of_an_artefact_have_a_plan_and_a_table_of_their_own(small, tmp_path, capsys):
    *_, sweep = commands("Artefacts")
    done, tables = run(*sweep, *small, "decoder=specinfer"), tmp_path / "results" / "embedded"
    [path] = (tables / "plans").glob("**/*.json")
    [note, last] = messages(done.stderr)
    name = path.stem
    other = f"note: sweep {name}, of your own; the plan of table1 stays"
    assert note == other
    shown = f"resispec table table1 --profile embedded --results {tables.parent} --plan {name}"
    assert done.returncode == 0 and last.endswith(f"; next: {shown}")
    assert write_artefact("table1", *shlex.split(shown)[3:]) == 0
    opening = f"**Sweep {name}, not all of table1: Table 1 of the paper"
    assert capsys.readouterr().out.startswith(opening)
    written = {file.name for file in (tables / "sweeps" / name).iterdir()}
    assert written == {f"table1.{suffix}" for suffix in ("csv", "json", "md", "tex")}
    assert not (tables / "table1.csv").exists()


def test_a_slurm_array_is_a_launcher_s_and_what_slurm_is_not_told_by_it_is_refused():
    """One that runs here is in test_every_option.py."""
    [sweep] = commands("A Slurm array")
    with hydra_here():
        assert launch_of(sweep) is not run_cells
    refused = pytest.raises(InvalidInput, match=r"key 'hydra.launcher.partitoin'; did you mean")
    with refused, hydra_here(), explained():
        launch_of([*sweep, "hydra.launcher.partitoin=gpu"])
