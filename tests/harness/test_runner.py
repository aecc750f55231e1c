"""The runner as a user meets it: configs that compose, cells that resume, errors of one line."""

import fcntl
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toys import save_prompts, save_tiny_pair, tiny_eagle

from experiments import worker
from experiments.cells import CONF, Cell, expected_cells, plan
from experiments.run import CellFailed, run_cell
from resispec.trees import grow_map
from resispec.decode import Generation
from resispec.errors import InvalidInput
from resispec.models import save_eagle
from resispec.record import PromptRow, RowLog, read_status
from resispec.trees import complete


def options(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture(scope="module")
def pair_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save_tiny_pair(folder)
    save_eagle(tiny_eagle(), folder / "eagle")
    save_prompts(folder, 8)
    return folder


@pytest.fixture
def toy(pair_folder, tmp_path):
    """Overrides that make any configuration a toy cell: tiny models, prompts and grow maps from local folders."""
    grow_map.save(complete(3, 2), tmp_path / "results" / "map.pt")
    for num_nodes, name in (
        (64, "jsonl.T1.0.64"),
        (121, "jsonl.T1.0.121"),
        *((n, f"specinfer.T1.0.best_{n}") for n in (16, 64, 121)),
    ):
        path = tmp_path / "results" / "embedded" / "growmap" / f"llama2_7b__jf68m.{name}.json"
        grow_map.save(complete(2, num_nodes - 1), path)
    return [
        "pair=llama2_7b__jf68m", f"pair.target={pair_folder}/target", f"pair.draft={pair_folder}/draft", "device=cpu",
        "dtype=float32", f"dataset.path={pair_folder}/prompts.jsonl", "num_prompts=3", "warmup_prompts=0", "prompt_tokens=12",
        "sampling.max_new_tokens=6", "sampling.max_length=40", "sampling.ignore_eos=true", f"results={tmp_path}/results",
        "num_threads=1",
    ]  # fmt: skip


def run(*overrides):
    """A real process, as typed by a user."""
    return subprocess.run(
        [sys.executable, "-m", "experiments.run", *overrides], capture_output=True, text=True, check=False
    )


def rows(cell: Cell):
    return [json.loads(line) for line in (cell.folder / "rows.jsonl").read_text().splitlines()]


def run_in_this_process(cell: Cell):
    cell.folder.mkdir(parents=True)
    (cell.folder / "cell.json").write_text(
        json.dumps({"title": str(cell), "labels": cell.labels, "config": cell.config})
    )
    worker.run(cell.folder)


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
        if not pair.startswith("embedded"):  # which would be trained
            yield [f"pair={pair}", *(["decoder=eagle"] if pair.endswith("__eagle") else [])]
    for decoder in options("decoder"):
        yield [f"decoder={decoder}", *(["pair=llama2_7b_chat__eagle"] if decoder.startswith("eagle") else [])]


@pytest.mark.parametrize("overrides", list(toy_cells()), ids=" ".join)
def test_every_file_composes_and_runs_a_toy_cell(overrides, toy, pair_folder):
    uses_eagle = any(override.endswith("__eagle") for override in overrides)
    drafter = [f"pair.draft={pair_folder}/eagle", "prompt_template='gh {text} abc'"] if uses_eagle else []
    [cell] = plan(["dataset=jsonl", *toy, "sampling.ignore_eos=true", *overrides, *drafter])
    chosen = dict(override.split("=") for override in overrides)
    assert {group: cell.labels.get(group, name) for group, name in chosen.items()} == chosen
    run_in_this_process(cell)
    assert [row["num_returned"] for row in rows(cell)] == [6, 6, 6]
    assert [row["seed"] for row in rows(cell)] == [0, 1, 2] and [row["prompt_id"] for row in rows(cell)] == [
        "p0",
        "p1",
        "p2",
    ]
    assert all(
        row["num_emitted"] == sum((k + 1) * n for k, n in enumerate(row["histogram"])) for row in rows(cell)
    )


@pytest.mark.parametrize("pair", options("pair"))
@pytest.mark.parametrize("profile", options("profile"))
def test_every_pair_and_profile_composes(pair, profile):
    [cell] = plan([f"pair={pair}", f"profile={profile}"])
    assert cell.labels["pair"] == pair and cell.folder.parts[-2] == profile


@pytest.mark.parametrize("experiment", options("experiment"))
@pytest.mark.parametrize("profile", options("profile"))
def test_every_experiment_names_its_cells(experiment, profile):
    cells = expected_cells(experiment, profile)
    assert len({cell.cell_id for cell in cells}) == len(cells) > 1
    assert (CONF.parent / "analysis" / f"{cells[0].config['artefact']}.py").is_file()


def test_table1_has_18_cells_and_shares_the_baseline():
    cells = expected_cells("table1", "embedded")
    timed = [cell for cell in cells if not cell.labels.get("audit")]
    assert len(timed) == 18 and len(cells) == 18 + 12  # every timed cell with a verifier has an audit cell
    baselines = [cell for cell in cells if cell.labels["decoder"] == "autoregressive"]
    assert len(baselines) == 6 and all(
        "tree" not in cell.labels and "verifier" not in cell.labels for cell in baselines
    )
    [alone] = plan(["dataset=embedded_code", "temperature=0.6", "verifier=resispec"])
    assert alone.cell_id in {cell.cell_id for cell in cells}
    assert len(expected_cells("table1", "embedded", ["dataset=embedded_code", "audit=false"])) == 6
    assert (
        len(
            expected_cells(
                "table1", "embedded", ["verifier=standard,resispec", "temperature=1.0", "audit=false"]
            )
        )
        == 9
    )


def test_a_cell_is_named_by_what_determines_it(pair_folder, toy):
    def cell_id(*overrides):
        [cell] = plan(["dataset=jsonl", *toy, *overrides])
        return cell.cell_id

    base = cell_id()
    assert cell_id("results=elsewhere", "artefact=x") == base and cell_id("tree.depth=5") == base
    changed = [
        cell_id(change)
        for change in ("seed=1", "temperature=0.5", "tree=d7b2", "verifier=resispec", "num_prompts=4")
    ]
    assert len({base, *changed}) == 6
    with (pair_folder / "prompts.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    assert cell_id() != base


def test_one_cell_end_to_end_is_repeatable_and_skipped_when_done(toy, tmp_path):
    command = ["dataset=jsonl", "tree=d4b4", *toy]
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "accepted_length=" in done.stderr and "[1/1]" in done.stderr
    [cell] = plan(command)
    first = rows(cell)
    assert read_status(cell.folder)["state"] == "done"
    assert {"git_commit", "device", "versions", "command"} <= set(
        json.loads((cell.folder / "provenance.json").read_text())
    )
    again = run(*command)
    assert again.returncode == 0 and "done already" in again.stderr
    [elsewhere] = plan([*command, f"results={tmp_path}/again"])
    run_cell(elsewhere)
    assert [row["tokens_sha256"] for row in rows(elsewhere)] == [row["tokens_sha256"] for row in first]
    assert elsewhere.cell_id == cell.cell_id


def test_a_sweep_records_a_failure_and_goes_on(toy):
    """d7b2 cannot fit max_length 17; the other two can."""
    command = ["dataset=jsonl", "tree=d7b2,d4b4,chain", *toy, "sampling.max_length=17"]
    done = run("-m", *command)
    assert done.returncode == 1
    assert (
        "error: " in done.stderr
        and "tree of 7 levels cannot fit max_length 17" in done.stderr
        and "Traceback" not in done.stderr
    )
    statuses = [read_status(cell.folder) for cell in plan(command)]
    assert [status["state"] for status in statuses] == ["failed", "done", "done"]
    assert "cannot fit" in statuses[0]["reason"]


def test_a_killed_worker_is_recorded(toy, tmp_path):
    (tmp_path / "killer.py").write_text(
        "import os\n\nclass Rule:\n    def law(self, *inputs):\n        os.kill(os.getpid(), 9)\n"
    )
    [cell] = plan(
        ["dataset=jsonl", "tree=d4b4", *toy, "verifier=custom", f"verifier.name={tmp_path}/killer.py:Rule"]
    )
    with pytest.raises(CellFailed, match="the worker was killed by signal 9"):
        run_cell(cell)
    assert read_status(cell.folder)["state"] == "failed" and not (cell.folder / "rows.jsonl").exists()


def test_a_stopped_cell_goes_on_after_the_prompts_that_it_has(toy):
    """What a kill in the middle of the third line leaves: two rows and a fragment."""
    [cell] = plan(["dataset=jsonl", "tree=d4b4", *toy])
    run_in_this_process(cell)
    finished = rows(cell)
    lines = [json.dumps(row) + "\n" for row in finished]
    (cell.folder / "rows.jsonl").unlink()
    (cell.folder / "rows.partial.jsonl").write_text(lines[0] + lines[1] + lines[2][:30])
    worker.run(cell.folder)
    assert rows(cell)[:2] == finished[:2]
    assert [row["tokens_sha256"] for row in rows(cell)] == [row["tokens_sha256"] for row in finished]


def test_a_terminated_runner_takes_its_worker_along(toy):
    command = ["dataset=jsonl", "tree=d7b2", *toy, "sampling.max_new_tokens=200", "sampling.max_length=248"]
    [cell] = plan(command)
    runner = subprocess.Popen(
        [sys.executable, "-m", "experiments.run", *command], stderr=subprocess.PIPE, text=True
    )
    for _ in range(600):
        if (cell.folder / "status.json").exists():
            break
        time.sleep(0.1)
    runner.send_signal(signal.SIGTERM)
    _, errors = runner.communicate(timeout=60)
    assert runner.returncode == 1 and "error: stopped" in errors
    assert read_status(cell.folder)["state"] == "interrupted"
    commands = [path.read_text() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(str(cell.folder) in command for command in commands)


def test_two_runs_do_not_write_to_one_cell(toy):
    [cell] = plan(["dataset=jsonl", "tree=d4b4", *toy])
    cell.folder.mkdir(parents=True)
    with (cell.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CellFailed, match="another run is working on it"):
            run_cell(cell)
    assert read_status(cell.folder)["state"] == "missing"
    log = RowLog(cell.folder / "rows.jsonl")
    log.append(PromptRow.of(0, "p0", 0, 3, Generation((1, 2), (2,), "eos", 0.1, 0.1)))
    (cell.folder / "rows.partial.jsonl").write_text("{}\n{}\n")
    with pytest.raises(RuntimeError, match="holds 2 rows where 1 were measured"):
        log.finish(1)


BAD = {
    "verifier=nope": "unknown verifier 'nope'; allowed: block, custom, .*resispec, standard, traversal",
    "tree=d9b9": "unknown tree 'd9b9'; allowed: .*d3b11, d4b4, d4b5, d5b3, d7b2, .*root",
    "dataset=nope": "unknown dataset 'nope'; allowed: c4, cnn_dm",
    "pair=nope": "unknown pair 'nope'; allowed: embedded, .*llama2_7b__jf68m",
    "experiment=nope": "unknown experiment 'nope'; allowed: .*table1",
    "temprature=1": "Could not override 'temprature'",
    "temperature=warm": "could not be converted to Float",
    "dataset.pth=x": "Could not override 'dataset.pth'",
    "tree=complete": "tree.depth must be given, like tree.depth=VALUE",
}


@pytest.mark.parametrize("override", BAD)
def test_bad_input_is_refused_in_one_line_before_anything_runs(override):
    with pytest.raises(InvalidInput, match=BAD[override]) as caught:
        plan([override])
    assert "\n" not in str(caught.value)


def test_bad_input_ends_with_an_exit_code_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for overrides, message in (
        (
            ["verifier=nope", f"results={tmp_path}/r"],
            "error: unknown verifier 'nope'; allowed: block, custom, ",
        ),
        ([f"results={tmp_path}/file"], "cannot be written"),
    ):
        done = run(*overrides)
        assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists() and (tmp_path / "file").read_text() == "not a folder"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["temperature=0"], "temperature must be positive and finite; found 0.0"),
        (["prompt_tokens=60"], "cannot fit max_length 40"),
        (["sampling.max_length=4000"], "exceeds the models' context of 256 positions"),
        (["pair.draft=JackFram/llama-68m"], "ways out: connect to the hub"),
        (["dtype=int4"], "unknown dtype 'int4'"),
        (["verifier=resispec", "verifier.spread=x"], "unknown spread 'x'; allowed: proportional, water_fill"),
        (["num_prompts=500"], "500 prompts were asked for"),
    ],
)
def test_what_only_the_cell_can_know_fails_the_cell_in_one_line(toy, pair_folder, overrides, message):
    (pair_folder / "long.jsonl").write_text("\n".join(json.dumps({"text": "long " * 200}) for _ in range(3)))
    [cell] = plan(["dataset=jsonl", *toy, *overrides, f"dataset.path={pair_folder}/long.jsonl"])
    with pytest.raises(InvalidInput, match=message) as caught:
        run_in_this_process(cell)
    assert "\n" not in str(caught.value) and not (cell.folder / "rows.jsonl").exists()
