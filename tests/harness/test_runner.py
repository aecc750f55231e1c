"""The runner as a user meets it: cells that run, resume and fail in one line, sweeps, clusters."""

import json
import os
import subprocess
import sys

import pytest
from toy_runs import hashes, messages, rows, run, run_apart, run_here, save_toys, toy_overrides
from toy_slurm import stand_in_for_slurm

from experiments.configuration.schema import CONF
from experiments.costs.configuration import Configuration
from experiments.plan import cells_of
from experiments.search import chosen
from experiments.store import CellStore
from experiments.worker import CellFailed
from resispec.trees import complete, grow_map


def options(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def toy(folder, tmp_path):
    """Overrides of a toy cell, in a results folder that has every tree that is searched for."""
    overrides = toy_overrides(folder, tmp_path / "results")
    for name in ("growmap_64", "growmap_121", "best_16", "best_64", "best_121"):
        [cell] = cells_of([*overrides, f"tree={name}"])
        grow_map.save(complete(2, int(name.rpartition("_")[2]) - 1), cell.tree_file)
    [cell] = cells_of([*overrides, "tree=fastest"])
    chosen.save(chosen.Chosen(Configuration("iid", "optimal", complete(3, 2)), {}), cell.tree_file, {})
    return overrides


def toy_cells():
    """Every file of every group is named once."""
    for dataset in options("dataset"):
        yield [f"dataset={dataset}"]
    for tree in options("tree"):
        given = {"complete": ["tree.depth=3", "tree.branching=2"], "growmap": ["tree.path=${results}/map.pt"]}
        dynamic = ["pair=llama2_7b_chat__eagle", "decoder=eagle"] if tree.startswith("eagle2") else []
        yield [f"tree={tree}", *dynamic, *given.get(tree, [])]
    for verifier in options("verifier"):
        given = {
            "custom": ["tree=d4b4", "verifier.name=standard"],
            "greedy": ["tree=d4b4", "decoder=greedy"],
            "block": ["tree=chain"],
        }
        yield [f"verifier={verifier}", *given.get(verifier, ["tree=d4b4"])]
    for pair in options("pair"):
        if not pair.startswith(("embedded", "inflated")):  # which would be trained
            yield [f"pair={pair}", *(["decoder=eagle"] if "__eagle" in pair else [])]
    for decoder in options("decoder"):
        given = ["pair=llama2_7b_chat__eagle"] if decoder.startswith("eagle") else []
        yield [f"decoder={decoder}", *(["tree=fastest"] if decoder == "fastest" else given)]


@pytest.mark.parametrize("overrides", list(toy_cells()), ids=" ".join)
def test_every_file_composes_and_runs_a_toy_cell(overrides, toy, folder, tmp_path):
    grow_map.save(complete(3, 2), tmp_path / "results" / "map.pt")
    has_pair, uses_eagle = (any(name in one for one in overrides) for name in ("pair=", "__eagle"))
    drafter = [f"pair.draft={folder}/eagle"] if uses_eagle else []
    template = ["prompt_template='gh {text} abc'"] if has_pair else []  # chat pairs have their own
    [cell] = cells_of([*toy, *overrides, *drafter, *template])
    for group, name in (
        override.split("=") for override in overrides if "." not in override.partition("=")[0]
    ):
        name = "standard" if name == "custom" else name  # a rule of one's own is called what it is
        assert cell.labels.get(group, name).partition("(")[0] == name
    run_here(cell)
    assert [row["num_returned"] for row in rows(cell)] == [6, 6, 6]
    assert [row["seed"] for row in rows(cell)] == [0, 1, 2]
    assert [row["prompt_id"] for row in rows(cell)] == ["p0", "p1", "p2"]
    assert CellStore(cell.folder).status().state == "done"


def test_one_cell_end_to_end_is_repeatable_and_skipped_when_done(toy, tmp_path):
    command = [*toy, "tree=d4b4"]
    done = run_apart(*command)
    assert done.returncode == 0, done.stderr
    [line] = messages(done.stderr)
    assert line == f"1 cell: 1 done (0 before); results in {tmp_path}/results/raw/embedded"
    [cell] = cells_of(command)
    facts = json.loads((cell.folder / "provenance.json").read_text())
    assert {"git_commit", "device", "versions", "command"} <= set(facts)
    again = run(*command)
    assert again.returncode == 0 and "1 done (1 before)" in again.stderr
    [elsewhere] = cells_of([*command, f"results={tmp_path}/again"])
    assert elsewhere.cell_id == cell.cell_id and hashes(run_here(elsewhere)) == hashes(cell)


@pytest.mark.parametrize(("flag", "is_first"), [([], True), (["-m"], True), (["--multirun"], False)])
def test_a_sweep_records_a_failure_and_goes_on(toy, flag, is_first):
    """d7b2 cannot fit max_length 17; the others can. The exit code says so, whatever the flag."""
    command = [*toy, "tree=d7b2,d4b4,chain", "sampling.max_length=17"]
    done = run(*(flag + command if is_first else command + flag))
    assert done.returncode == 1
    error, last = messages(done.stderr)
    assert error.startswith("error: ") and "tree of 7 levels" in error and "Traceback" not in done.stderr
    assert last.startswith("3 cells: 2 done (0 before), 1 not complete; results in ")
    stores = [CellStore(cell.folder).status() for cell in cells_of(command)]
    assert [status.state for status in stores] == ["failed", "done", "done"] and "max_length 17" in stores[
        0
    ].reason


def test_an_artefact_ends_with_the_command_that_makes_its_table(toy):
    done = run("experiment=table1", *toy, "temperature=1.0", "verifier=standard", "decoder=specinfer")
    assert done.returncode == 0, done.stderr
    assert messages(done.stderr)[-1].endswith("raw/embedded; make table1 PROFILE=embedded writes the table")


def test_a_search_that_fails_is_one_line_and_is_summed_up(toy, tmp_path):
    """There are too few documents to search with; the sweep's plan and its last line come all the same."""
    path = tmp_path / "results" / "missing.json"
    growmap = ["tree=growmap", f"tree.path={path}", "decoder=sequoia", "num_prompts=1"]
    done = run(*toy, *growmap)
    searching, error, last = messages(done.stderr)
    assert searching == f"searching for the tree {path}" and done.returncode == 1
    assert error.startswith(f"error: the search for {path} failed: ") and "prompts were asked for" in error
    assert last.startswith("1 cell: 0 done (0 before), 1 not complete")
    [plan] = (tmp_path / "results" / "embedded" / "plans" / "sweep").glob("*.json")
    assert [cell["cell_id"] for cell in json.loads(plan.read_text())["cells"]] == ["no-tree"]


def test_what_changes_nothing_is_said_once(toy):
    done = run(*toy, "decoder=autoregressive", "tree=d4b4,chain", "num_prompts=1")
    notes = [line for line in messages(done.stderr) if line.startswith("note: ")]
    assert notes == ["note: tree=... changes nothing: decoder=autoregressive has no tree"]


def test_a_stopped_cell_goes_on_after_the_prompts_that_it_has(toy):
    """What a kill in the middle of the third line leaves: two rows and a fragment."""
    [cell] = cells_of([*toy, "tree=d4b4"])
    run_here(cell)
    lines, first = (cell.folder / "rows.jsonl").read_text().splitlines(keepends=True), rows(cell)
    (cell.folder / "rows.jsonl").unlink()
    (cell.folder / "status.json").unlink()
    (cell.folder / "rows.partial.jsonl").write_text(lines[0] + lines[1] + lines[2][:30])
    run_here(cell)
    assert rows(cell)[:2] == first[:2] and [row["tokens_sha256"] for row in first] == hashes(cell)


def test_hydra_s_own_flags_work(toy):
    """What users of Hydra expect of every application."""
    shown = run_apart("--help").stdout
    assert (
        "usage: python -m experiments.run" in shown and "experiment=table1" in shown and "Exit code" in shown
    )
    composed = run_apart("--cfg", "job", *toy).stdout
    assert "num_prompts: 3" in composed and "${tree}" in composed
    resolved = run_apart("--cfg", "job", "--resolve", *toy).stdout
    assert "${" not in resolved and "pair: llama2_7b__jf68m" in resolved
    assert run_apart("-cn", "run", "--cfg", "job").returncode == 0
    assert run_apart("--version").stdout.startswith("resispec ")
    script = "experiments/run.py"  # Hydra completes `python FILE`
    environment = os.environ | {"COMP_LINE": f"python {script} tree=d5", "COMP_POINT": "40"}
    command = [sys.executable, CONF.parent / script, "-sc", "query=bash"]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert completed.stdout.split() == ["tree=d5b3"]


@pytest.mark.parametrize("launcher", ["submitit_local", "submitit_slurm"])
def test_a_cluster_s_launcher_runs_the_same_cells(toy, tmp_path, launcher, monkeypatch):
    """One job a cell, the results folder shared; Slurm's commands are stand-ins that run the job at once."""
    stand_in_for_slurm(tmp_path / "bin", monkeypatch)
    command = [*toy, "tree=d4b4,chain"]
    expected = [hashes(run_here(cell)) for cell in cells_of([*command, f"results={tmp_path}/here"])]
    done = run_apart(f"hydra/launcher={launcher}", *command)
    assert done.returncode == 0, done.stderr
    assert [hashes(cell) for cell in cells_of(command)] == expected
    assert "2 cells: 2 done" in messages(done.stderr)[-1]
    if launcher == "submitit_local":  # Slurm's way is tried with a job that fails, too
        return
    failing = run_apart(f"hydra/launcher={launcher}", *toy, "tree=d7b2,chain", "sampling.max_length=17")
    assert (
        failing.returncode == 1
        and "2 cells: 1 done (0 before), 1 not complete" in messages(failing.stderr)[-1]
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["prompt_tokens=60"], "cannot fit max_length 40|max_length 40"),
        (["sampling.max_length=4000"], "exceeds the models' context of 256 positions"),
        (["pair.draft=JackFram/llama-68m"], "ways out: connect to the hub"),
        (["verifier=resispec", "verifier.spread=x"], "unknown spread 'x'; allowed: proportional, water_fill"),
        (["num_prompts=500"], "500 prompts were asked for"),
    ],
)
def test_what_only_the_cell_can_know_fails_the_cell_in_one_line(toy, folder, overrides, message):
    long = folder / "long.jsonl"
    long.write_text("\n".join(json.dumps({"text": "long " * 200}) for _ in range(3)))
    [cell] = cells_of([*toy, f"dataset.path={long}", *overrides])
    with pytest.raises(CellFailed, match=message) as caught:
        run_here(cell)
    assert "\n" not in str(caught.value) and not (cell.folder / "rows.jsonl").exists()
    assert CellStore(cell.folder).status().reason in str(caught.value)
