"""Runs that are stopped, two runs at once, a full disk. No row is lost."""

import os
import resource
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from analysis.load import read_status
from experiments.cell import build
from experiments.check import rehearse_cells
from experiments.grid import cells_of
from experiments.store import RowLog
from experiments.worker import load_workload
from tests.harness.toy_runs import COMMAND, hashes, messages, rows, run, run_here, toy_overrides

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


def holders(cells):
    """Processes that hold the lock of one of the cells, by the files that they have open."""
    wanted = {str(cell.folder / ".lock") for cell in cells}
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = list((process / "fd").iterdir())
        except OSError:
            continue  # it has ended
        for link in links:
            with suppress(OSError):  # it is closed meanwhile
                if str(link.readlink()) in wanted:
                    found.add(int(process.name))
    return found - {os.getpid()}


def measuring(command):
    """A process of its own that runs the command, once it measures a cell."""
    cells = cells_of(command)
    process = subprocess.Popen([*COMMAND, *command], stderr=subprocess.PIPE, text=True)
    while not holders(cells) and process.poll() is None:
        time.sleep(0.05)
    return process


def check(command, expected):
    """Every prompt once and in order, an undisturbed run's tokens, and nobody left at work."""
    cells = cells_of(command)
    for cell, tokens in zip(cells, expected, strict=True):
        assert [row["prompt_index"] for row in rows(cell)] == list(range(len(tokens)))
        assert hashes(cell) == tokens and read_status(cell.folder).state == "done"
        assert {path.name for path in cell.folder.glob(".*")} == {".lock"}
    assert not holders(cells)


def test_a_stopped_run_takes_its_worker_along_and_says_one_line(slow):
    """By SIGTERM; Ctrl-C is in test_make_reproduce.py."""
    process = measuring(slow)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    [line] = messages(errors)
    assert line == "error: stopped; what is finished stays, and the same command goes on from there"
    assert not holders(cells_of(slow))


def test_two_runs_at_once_share_the_work(slow, calm):
    """The second, this process, begins while the first measures; its workers' imports are done."""
    rehearse_cells(cells_of(slow))
    process = measuring(slow)
    done = run(*slow)
    _, errors = process.communicate(timeout=300)
    for code, said in ((process.returncode, errors), (done.returncode, done.stderr)):
        assert code == 0 and messages(said)[-1].startswith("2 cells: 2 done"), said
    check(slow, calm)


def test_a_full_disk_is_one_line_and_the_cell_goes_on_afterwards(toy, tmp_path):
    """A limit on the size of files stands in for a full disk: writing fails in the same place."""
    command = [
        *toy,
        "audit=true",
        "num_prompts=4",
        "sampling.max_new_tokens=60",
        "sampling.max_length=90",
    ]
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
    row_type = build(cell.config["task"]).row
    assert 0 < len(RowLog(cell.folder, row_type, load_workload(cell.config, None)).rows) < 4
    assert run(*command).returncode == 0
    check(command, calm)
