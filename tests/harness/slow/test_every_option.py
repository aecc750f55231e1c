"""Every file of every group runs a toy cell, here or for golden rows; Hydra's flags."""

import json
import os
import subprocess
import sys

import pytest

from analysis.cli import DIALECTS
from experiments.configurations import Chosen, Configuration
from experiments.grid import cells_of
from experiments.schema import CONF
from resispec.trees import complete, grow_map
from tests.harness.toy_runs import rows, run, run_here


def options(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def save_searched(toy, tree):
    """Save a tree that is searched for, if it is one, where a toy cell expects it."""
    tree = "tree=best_121" if tree == "tree=best" else tree
    kind, _, size = tree.removeprefix("tree=").rpartition("_")
    if tree == "tree=fastest":
        [cell] = cells_of([*toy, tree])
        Chosen(Configuration("iid", "optimal", complete(3, 2)), {}).save(cell.tree_file, {})
    elif kind in ("growmap", "best", "own"):
        [cell] = cells_of([*toy, tree])
        grow_map.save(complete(2, int(size) - 1), cell.tree_file)


GIVEN = {
    "tree=complete": "tree.depth=3 tree.branching=2",
    "tree=growmap": "tree.path=${results}/map.json",
    "tree=eagle2_k15": "pair=llama2_7b_chat__eagle decoder=eagle",
    "verifier=custom": "tree=d4b4 verifier.name=standard",
    "verifier=univer": "tree=d4b4 decoder=greedy",
    "verifier=gbv": "tree=chains",
    "verifier=spec_hub": "tree=complete tree.depth=3 tree.branching=2 decoder=spec_hub",
    "decoder=spec_hub": "tree=complete tree.depth=3 tree.branching=2",
    "verifier=hsd": "tree=chain",
    "decoder=fastest": "tree=fastest",
    "dataset=mt_bench_second": "dataset.answers=null",
}
"""What an option needs beside it."""
GOLDEN = {
    word
    for name in json.loads((CONF.parent / "tests" / "golden" / "rows.json").read_text())
    for word in name.split()
}
"""Options whose rows are compared elsewhere."""


def toy_cells():
    """Files of every group, each once, but for pairs with a fingerprint, which would be trained.

    Data sets and decoders of one's own are in test_plugins.py, those of GOLDEN in test_golden.py.
    """
    for group in ("dataset", "tree", "verifier", "pair", "decoder"):
        for option in options(group):
            name, of_group = f"{group}={option}", {"verifier": "tree=d4b4"}.get(group, "")
            if "__eagle" in name:
                of_group = "decoder=eagle"
            is_made = (
                group == "pair" and "fingerprint" in (CONF / group / f"{option}.yaml").read_text()
            )
            if not is_made and name not in (*GOLDEN, "dataset=custom", "decoder=custom"):
                yield [name, *GIVEN.get(name, of_group).split()]


@pytest.mark.parametrize("overrides", list(toy_cells()), ids=" ".join)
def test_every_file_composes_and_runs_a_toy_cell(overrides, toy, folder, tmp_path):
    for one in overrides:
        save_searched(toy, one)
    grow_map.save(complete(3, 2), tmp_path / "results" / "map.json")
    has_pair, uses_eagle = (any(name in one for one in overrides) for name in ("pair=", "__eagle"))
    drafter = [f"pair.draft={folder}/eagle"] if uses_eagle else []
    template = ["prompt_template='gh {text} abc'"] if has_pair else []  # chat pairs have their own
    [cell] = cells_of([*toy, *overrides, *drafter, *template])
    for group, name in (word.split("=") for word in overrides if "." not in word.partition("=")[0]):
        name = "standard" if name == "custom" else name  # a rule of one's own is called what it is
        assert str(cell.labels.get(group, name)).partition("(")[0] == name
    run_here(cell)
    found = [(row["num_returned"], row["seed"], row["prompt_id"]) for row in rows(cell)]
    assert found == [(6, index, f"p{index}") for index in range(3)]


def test_hydra_s_own_flags_work(toy):
    """What users of Hydra expect of every application."""
    shown = run("--help").stdout
    assert "usage: resispec run" in shown and DIALECTS in shown
    composed = run("--cfg", "job", *toy).stdout
    assert "num_prompts: 3" in composed and "${tree}" in composed
    resolved = run("--cfg", "job", "--resolve", *toy).stdout
    assert "${" not in resolved and "load_pair" in resolved
    assert run("-cn", "run", "--cfg", "job").returncode == 0
    assert run("--version").stdout.startswith("resispec ")
    script = "experiments/run.py"  # Hydra completes `python FILE`
    environment = os.environ | {"COMP_LINE": f"python {script} tree=d5", "COMP_POINT": "40"}
    command = [sys.executable, CONF.parent / script, "-sc", "query=bash"]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert completed.stdout.split() == ["tree=d5b3"]
