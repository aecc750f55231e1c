"""Every file of every group runs a toy cell, here or for golden rows; Hydra's flags,
and its launchers.
"""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus

from analysis.cli import DIALECTS
from analysis.load import read_status
from experiments.configurations import Chosen, Configuration
from experiments.grid import cells_of
from experiments.schema import CONF
from resispec.trees import complete, grow_map
from tests.harness.toy_runs import COMMAND, hashes, messages, rows, run, run_here


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
    """Files of every group, each named once, but for pairs with a fingerprint,
    which would be trained.

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


def test_a_cluster_s_launcher_runs_the_same_cells(toy, tmp_path):
    """One job a cell, the results folder shared; one that fails is summed up.

    A Slurm array: sweeps page.
    """
    command = [*toy, "tree=d7b2,chain", "sampling.max_length=17"]
    _, calm = cells_of([*command, f"results={tmp_path}/calm"])
    expected = hashes(run_here(calm))
    launched = [*COMMAND, "hydra/launcher=submitit_local", *command]
    done = subprocess.run(launched, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert hashes(cells_of(command)[1]) == expected
    assert "2 cells: 1 done (0 before), 1 not complete" in messages(done.stderr)[-1]


def test_a_launcher_s_cells_need_no_device_of_this_machine(toy):
    """A login node has none.

    Here the job runs on the same machine, and its cell fails for want of one.
    """
    command = [*(word for word in toy if word != "device=cpu"), "device=cuda", "tree=chain"]
    launched = [*COMMAND, "hydra/launcher=submitit_local", *command]
    without = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        launched, capture_output=True, text=True, check=False, timeout=120, env=without
    )
    assert "1 cell: 0 done (0 before), 1 not complete" in messages(done.stderr)[-1]
    [cell] = cells_of(command)
    assert read_status(cell.folder).state == "failed"


def test_what_a_launcher_says_of_its_jobs_is_printed(toy, monkeypatch):
    """Of those that failed, and of one that was killed,
    after which it does not wait for the others.
    """

    def said(launch):
        launcher = SimpleNamespace(launch=launch)
        monkeypatch.setattr(Plugins, "instantiate_launcher", lambda *_, **__: launcher)
        done = run(*toy, "hydra/launcher=submitit_local")
        assert done.returncode == 1
        return [line for line in messages(done.stderr) if line.startswith("error: ")]

    def failed(*_, **__):
        ended = JobReturn(status=JobStatus.FAILED)
        ended.return_value = OSError("no space\nleft")
        return [JobReturn(status=JobStatus.COMPLETED), ended]

    def killed(*_, **__):
        raise RuntimeError("job 7 is gone\nmore about it")

    assert said(failed) == ["error: a job of the launcher failed: no space"]
    goes_on = "; jobs that are submitted go on, see `make status`"
    assert said(killed) == [f"error: a job of the launcher failed: job 7 is gone{goes_on}"]
