"""Kills at random moments, two runs at once, a full disk, a rule that kills. No row is lost."""

import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from toy_runs import COMMAND, hashes, messages, rows, run, run_here, toy_overrides

from experiments.cell import build
from experiments.grid import cells_of
from experiments.store import CellStore, RowLog

KILLS = int(os.environ.get("RESISPEC_KILLS", "1"))
"""Of the coordinator, and half as many of workers. The suite takes few; RESISPEC_KILLS=20 tries more."""
SLOW = ["tree=d5b3,chain", "num_prompts=8", "sampling.max_new_tokens=120", "sampling.max_length=160"]


@pytest.fixture(scope="module")
def calm(folder, tmp_path_factory):
    """The tokens of an undisturbed run of a sweep of two cells that takes seconds."""
    results = tmp_path_factory.mktemp("calm")
    return [hashes(run_here(cell)) for cell in cells_of([*toy_overrides(folder, results), *SLOW])]


@pytest.fixture
def slow(toy):
    """The command of that sweep in a fresh folder."""
    return [*toy, *SLOW]


def start(command):
    return subprocess.Popen([*COMMAND, *command], stderr=subprocess.PIPE, text=True)


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
        assert {path.name for path in cell.folder.glob(".*")} == {".lock"}
    assert not holders(command)


def test_no_row_is_lost_when_the_coordinator_is_killed(slow, calm):
    """A kill at a random moment, and a restart at once: the worker of the killed one may still be at work."""
    for cell in cells_of(slow):  # a process was killed as it wrote
        cell.folder.mkdir(parents=True)
        (cell.folder / ".status.json.12345").write_text("{")
    moments = random.Random(0)
    for _ in range(KILLS):
        process = start(slow)
        time.sleep(moments.uniform(1.0, 6.0))
        process.kill()
        process.wait()
    done = run(*slow)
    assert done.returncode == 0, done.stderr
    check(slow, calm)


def test_no_row_is_lost_when_workers_are_killed(slow, calm):
    """What they left undone is tried once more."""
    moments = random.Random(1)
    for _ in range((KILLS + 1) // 2):
        process = start(slow)
        while process.poll() is None and not holders(slow):
            time.sleep(0.05)
        time.sleep(moments.uniform(0.0, 1.0))
        killed = holders(slow)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert ("note: the worker was killed by signal 9; tried once more" in errors) == bool(killed)
        assert "Traceback" not in errors
    assert run(*slow).returncode == 0
    check(slow, calm)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_takes_its_worker_along_and_says_one_line(slow, calm, number):
    process = start(slow)
    while not holders(slow) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    [line] = messages(errors)
    assert line == "error: stopped; what is finished stays, and the same command goes on from there"
    assert not holders(slow)
    if number == signal.SIGTERM:
        assert run(*slow).returncode == 0
        check(slow, calm)


def test_two_runs_at_once_share_the_work(slow, calm):
    for process in [start(slow), start(slow)]:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0 and messages(errors)[-1].startswith("2 cells: 2 done"), errors
    check(slow, calm)


def test_a_full_disk_is_one_line_and_the_cell_goes_on_afterwards(toy, tmp_path):
    """A limit on the size of files stands in for a full disk: writing fails in the same place."""
    command = [*toy, "audit=true", "num_prompts=8", "sampling.max_new_tokens=60", "sampling.max_length=90"]
    calm = [hashes(run_here(cell)) for cell in cells_of([*command, f"results={tmp_path}/calm"])]
    limited = subprocess.run(
        [*COMMAND, *command], stderr=subprocess.PIPE, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )  # fmt: skip
    [cell] = cells_of(command)
    error, last = messages(limited.stderr)
    assert limited.returncode == 1 and error.startswith("error: ") and "File too large" in error
    assert last.startswith("1 cell: 0 done") and "Traceback" not in limited.stderr
    assert not (cell.folder / "rows.jsonl").exists()
    assert 0 < len(RowLog(cell.folder, build(cell.config["task"]).row).rows) < 8
    assert run(*command).returncode == 0
    check(command, calm)
