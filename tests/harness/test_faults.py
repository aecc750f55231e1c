"""What goes wrong: kills, two runs at once, a full disk, damaged files, bad rules. No row is lost."""

import json
import os
import random
import re
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from toy_runs import COMMAND, hashes, messages, rows, run, run_here, save_toys, toy_overrides

from experiments.configuration.build import build
from experiments.plan import cells_of
from experiments.store import CellStore, RowLog, Status
from experiments.tasks.decode import PromptRow
from experiments.worker import CellFailed

KILLS = int(os.environ.get("RESISPEC_KILLS", "1"))
"""Of the coordinator, and half as many of workers. The suite takes few; RESISPEC_KILLS=20 tries more."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def toy(folder, tmp_path):
    return [*toy_overrides(folder, tmp_path / "results"), "tree=d4b4"]


SLOW = ["tree=d5b3,chain", "num_prompts=8", "sampling.max_new_tokens=120", "sampling.max_length=160"]


@pytest.fixture(scope="module")
def calm(folder, tmp_path_factory):
    """The tokens of an undisturbed run of a sweep of two cells that takes seconds."""
    results = tmp_path_factory.mktemp("calm")
    return [hashes(run_here(cell)) for cell in cells_of([*toy_overrides(folder, results), *SLOW])]


@pytest.fixture
def slow(toy, calm):
    """That sweep in a fresh folder, and its tokens."""
    return [*toy[:-1], *SLOW], calm


def holders(command):
    """Processes that hold the lock of one of the command's cells, by the files that they have open."""
    wanted = {str(cell.folder / ".lock") for cell in cells_of(command)}
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) in wanted:
                found.add(int(link.parts[2]))
        except OSError:
            continue  # it has ended
    return found - {os.getpid()}


def check(command, expected):
    """Every prompt once and in order, with the tokens of an undisturbed run, and nobody left at work."""
    for cell, tokens in zip(cells_of(command), expected, strict=True):
        assert [row["prompt_index"] for row in rows(cell)] == list(range(8))
        assert hashes(cell) == tokens and CellStore(cell.folder).status().state == "done"
        assert not [
            path.name for path in cell.folder.iterdir() if path.name.startswith(".") and path.name != ".lock"
        ]
    assert not holders(command)


def test_no_row_is_lost_when_the_coordinator_is_killed(slow):
    """A kill at a random moment, and a restart at once: the worker of the killed one may still be at work."""
    command, expected = slow
    moments = random.Random(0)
    for _ in range(KILLS):
        process = subprocess.Popen([*COMMAND, *command], stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(1.0, 6.0))
        process.kill()
        process.wait()
    done = run(*command)
    assert done.returncode == 0, done.stderr
    check(command, expected)


def test_what_a_killed_process_was_writing_is_removed_by_the_next_run(slow):
    command, expected = slow
    for cell in cells_of(command):
        cell.folder.mkdir(parents=True)
        (cell.folder / ".status.json.12345").write_text("{")
    assert run(*command).returncode == 0
    check(command, expected)


def test_no_row_is_lost_when_workers_are_killed(slow):
    command, expected = slow
    moments = random.Random(1)
    for _ in range((KILLS + 1) // 2):
        process = subprocess.Popen([*COMMAND, *command], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + moments.uniform(2.5, 6.0)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        killed = holders(command)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        if killed:
            assert process.returncode == 1 and "the worker was killed by signal 9" in errors
        assert "Traceback" not in errors
    assert run(*command).returncode == 0
    check(command, expected)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_takes_its_worker_along_and_says_one_line(slow, number):
    command, expected = slow
    process = subprocess.Popen([*COMMAND, *command], stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if holders(command):
            break
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert messages(errors) == [
        "error: stopped; what is finished stays, and the same command goes on from there"
    ]
    assert not holders(command)
    if number == signal.SIGTERM:
        assert run(*command).returncode == 0
        check(command, expected)


def test_two_runs_at_once_share_the_work(slow):
    command, expected = slow
    both = [subprocess.Popen([*COMMAND, *command], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0 and messages(errors)[-1].startswith("2 cells: 2 done"), errors
    check(command, expected)


def test_a_full_disk_is_one_line_and_the_cell_goes_on_afterwards(toy, tmp_path):
    """A limit on the size of files stands in for a full disk: writing fails in the same place."""
    command = [*toy, "audit=true", "num_prompts=8", "sampling.max_new_tokens=60", "sampling.max_length=90"]
    calm = [hashes(run_here(cell)) for cell in cells_of([*command, f"results={tmp_path}/calm"])]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # noqa: E731
    limited = subprocess.run(
        [*COMMAND, *command], stderr=subprocess.PIPE, text=True, check=False, preexec_fn=limit
    )
    [cell] = cells_of(command)
    error, last = messages(limited.stderr)
    assert limited.returncode == 1 and error.startswith("error: ") and "File too large" in error
    assert last.startswith("1 cell: 0 done") and "Traceback" not in limited.stderr
    assert {path.name for path in cell.folder.iterdir()} <= {
        ".lock", "cell.json", "log.txt", "provenance.json", "rows.partial.jsonl", "status.json",
    }  # fmt: skip
    assert 0 < len(RowLog(cell.folder, build(cell.config["task"]).row).rows) < 8
    assert run(*command).returncode == 0
    check(command, calm)


DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\x00\xff garbage"),
    "{}": lambda path: path.write_text("{}"),
    "[]": lambda path: path.write_text("[]"),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["cell.json", "provenance.json", "rows.jsonl", "status.json"])
def test_a_damaged_cell_is_measured_again(toy, name, how):
    [cell] = cells_of(toy)
    first = hashes(run_here(cell))
    DAMAGES[how](cell.folder / name)
    status = CellStore(cell.folder).status()
    assert status.state == "damaged" and name in status.reason and "\n" not in status.reason
    assert hashes(run_here(cell)) == first and CellStore(cell.folder).status().state == "done"


def test_a_run_says_that_a_cell_is_measured_again(toy):
    [cell] = cells_of(toy)
    first = hashes(run_here(cell))
    with (cell.folder / "rows.jsonl").open("a") as file:
        file.write("{}\n")
    done = run(*toy)
    assert (
        done.returncode == 0 and "its files are damaged (rows.jsonl is not what was written)" in done.stderr
    )
    assert hashes(cell) == first


def test_a_cell_that_was_stopped_before_its_last_status_keeps_its_rows(toy):
    """Between the last row and the status "done" nothing is lost, times included."""
    [cell] = cells_of(toy)
    first = rows(run_here(cell))
    store = CellStore(cell.folder)
    store.write_status(Status("interrupted", "stopped"))
    assert rows(run_here(cell)) == first and store.status().state == "done"


LINES = {
    "a prompt twice": [0, 0, 1],
    "a prompt missing": [0, 2],
    "another order": [1, 0],
}


@pytest.mark.parametrize("order", LINES.values(), ids=LINES)
def test_of_a_partial_file_only_the_right_beginning_is_kept(toy, order):
    [cell] = cells_of(toy)
    run_here(cell)
    finished, lines = rows(cell), (cell.folder / "rows.jsonl").read_text().splitlines(keepends=True)
    (cell.folder / "status.json").unlink()
    (cell.folder / "rows.jsonl").unlink()
    (cell.folder / "rows.partial.jsonl").write_text("".join(lines[index] for index in order))
    kept = RowLog(cell.folder, PromptRow).rows
    assert [row.prompt_index for row in kept] == list(range(len(kept))) and len(kept) < len(order)
    run_here(cell)
    assert [row["tokens_sha256"] for row in finished] == hashes(cell)
    assert [row["prompt_index"] for row in rows(cell)] == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"num_steps": 0},
        {"histogram": [1]},
        {"decode_s": -1.0},
        {"seed": "0"},
        {"num_emitted": None},
        {"x": 1},
    ],
)
def test_a_row_that_contradicts_itself_is_no_row(toy, change):
    [cell] = cells_of(toy)
    run_here(cell)
    row = rows(cell)[0] | change
    (cell.folder / "rows.partial.jsonl").write_text(json.dumps(row) + "\n")
    assert RowLog(cell.folder, PromptRow).rows == []


def test_nothing_else_writes_a_log_unnoticed(toy):
    [cell] = cells_of(toy)
    run_here(cell)
    first = PromptRow(**rows(cell)[0])
    log = RowLog(cell.folder, PromptRow)
    log.append(first)
    with pytest.raises(RuntimeError, match="row 1 is of prompt 0"):
        log.append(first)
    with (cell.folder / "rows.partial.jsonl").open("a") as file:
        file.write(json.dumps(rows(cell)[1]) + "\n")
    with pytest.raises(RuntimeError, match="does not hold the 1 rows that were measured"):
        log.finish(1)


RULES = {
    "wrong_shape": ("return Law(target_probs.gather(-1, siblings)[..., 1:], target_probs)", "select"),
    "short_residual": ("return Law(0 * siblings.float(), target_probs[..., 1:])", "residual"),
    "negative": ("return Law(0 * siblings.float(), -target_probs)", "Rule"),
    "nan": ("return Law(0 * siblings.float(), target_probs * float('nan'))", "Rule"),
    "raises": ("raise KeyError('lost')", "KeyError: 'lost' (verifier {file}:Rule)"),
    "exits": ("import sys; sys.exit(0)", "the code ended the process: sys.exit(0)"),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_misbehaves_fails_its_cell_in_one_line(toy, tmp_path, name):
    """And never gives plausible rows."""
    body, message = RULES[name]
    file = tmp_path / f"{name}.py"
    file.write_text(
        "from resispec.verifiers import Law\n\n\nclass Rule:\n"
        f"    def law(self, target_probs, draft_probs, siblings, draws):\n        {body}\n"
    )
    [cell] = cells_of([*toy, "verifier=custom", f"verifier.name={file}:Rule"])
    with pytest.raises(CellFailed, match=re.escape(message.format(file=file))) as caught:
        run_here(cell)
    assert "\n" not in str(caught.value)
    assert CellStore(cell.folder).status().state == "failed" and not (cell.folder / "rows.jsonl").exists()


def test_a_rule_that_kills_its_process_fails_its_cell_and_the_others_go_on(toy, tmp_path):
    file = tmp_path / "killer.py"
    file.write_text(
        "import os\n\n\nclass Rule:\n    def law(self, *inputs):\n        os.kill(os.getpid(), 9)\n"
    )
    done = run(*toy, "verifier=custom", f"verifier.name={file}:Rule,standard")
    error, last = messages(done.stderr)
    assert (
        done.returncode == 1
        and "the worker was killed by signal 9" in error
        and "Traceback" not in done.stderr
    )
    assert last.startswith("2 cells: 1 done (0 before), 1 not complete")
