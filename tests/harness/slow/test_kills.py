"""Runs that are stopped, two runs at once, a full disk, a rule that kills. No row is lost."""

import os
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

SLOW = ["tree=d5b3,chain", "num_prompts=8", "sampling.max_new_tokens=60", "sampling.max_length=100"]


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


def test_a_stopped_run_takes_its_worker_along_and_says_one_line(slow):
    """By SIGTERM; Ctrl-C is in test_make_reproduce.py."""
    process = start(slow)
    while not holders(slow) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    [line] = messages(errors)
    assert line == "error: stopped; what is finished stays, and the same command goes on from there"
    assert not holders(slow)


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
