"""Runs cells one after another, each in a process of its own, with one progress line for all of them.

A worker that dies takes nothing along but its own cell, and a worker dies with the process that started it:
both hold for a SIGKILL, too. This module imports no torch; workers are forked from a server that has, so that
starting one takes no time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from experiments.cells import Cell
from experiments.store import CellStore, Status

BUSY = 75  # the exit code of a worker whose cell another run is measuring
STOP_S = 10.0  # for a worker to end after it was asked to

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["experiments.worker"])


class Progress:
    """One line on stderr: which cell, how far it is, and how long all cells will take."""

    def __init__(self, num_prompts: int, num_cells: int) -> None:
        self._num_cells, self._done, self._cell_done, self._number = num_cells, 0, 0, 0
        layout = "{desc} |{bar:12}| {percentage:3.0f}% [{elapsed}<{remaining}]"
        interval = 0.1 if sys.stderr.isatty() else 5.0
        self._bar = tqdm(
            total=num_prompts, bar_format=layout, dynamic_ncols=True, mininterval=interval, leave=False
        )

    def start(self, number: int, cell: Cell) -> None:
        """A cell begins, the `number`-th of all."""
        self._number, self._cell_done = number, 0
        self._bar.set_description_str(f"[{number}/{self._num_cells}] {cell}")

    def report(self, what: str, done: int, total: int) -> None:
        """See `experiments.worker.Report`; prompts that a stopped run left count as done."""
        self._bar.set_description_str(
            f"[{self._number}/{self._num_cells}] {what} {done}/{total}", refresh=False
        )
        self._bar.update(max(0, done - self._cell_done))
        self._cell_done = max(done, self._cell_done)

    def say(self, line: str) -> None:
        """Print a line above the progress line."""
        self._bar.write(line, file=sys.stderr)

    def close(self) -> None:
        """Remove the line."""
        self._bar.close()


def run_cells(cells: Sequence[Cell], total: int | None = None) -> None:
    """Run cells that are not complete, each in a process of its own; go on after a failure.

    A failure is printed in one line and recorded in the cell's status. A cell that another run is measuring
    is left to that run while others remain, then waited for. total: cells of the whole sweep, of which these
    remain.
    """
    progress = Progress(sum(cell.config["num_prompts"] for cell in cells), total or len(cells))
    pending = deque(enumerate(cells, start=(total or len(cells)) - len(cells) + 1))
    busy = 0
    try:
        while pending:
            number, cell = pending.popleft()
            progress.start(number, cell)
            code = _in_a_process(_work, cell, progress.report)
            busy = busy + 1 if code == BUSY else 0
            if code == BUSY:
                pending.append((number, cell))
                if busy >= len(pending):  # all that remain are being measured elsewhere
                    time.sleep(1.0)
            elif code:
                progress.say(f"error: {cell}: {_why(cell, code)}")
    finally:
        progress.close()


def run_search(search: Mapping[str, Any], path: Path, cells: Sequence[Cell]) -> bool:
    """Search for a tree file in a process of its own; whether it was found. A failure prints one line."""
    progress = Progress(1, 1)
    try:
        return _in_a_process(_search, (search, path, cells), progress.report) == 0
    finally:
        progress.close()


def _why(cell: Cell, code: int) -> str:
    """Why a worker did not complete its cell; a worker that was killed could not say so itself."""
    store = CellStore(cell.folder)
    status = store.status()
    if status.state != "failed":
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        status = Status("failed", f"the worker {how}")
        try:
            with store.locked():
                if store.status().state != "done":
                    store.write_status(status)
        except (OSError, TimeoutError):
            pass  # the disk is full, or another run has taken over
    return status.reason


def _in_a_process(target: Callable[..., NoReturn], work: Any, report: Callable[[str, int, int], None]) -> int:
    """Run `target(work, channel)` in a process, pass on what it reports, and return its exit code.

    A signal to stop ends the process first, and then this one.
    """
    receiving, sending = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=target, args=(work, sending))
    try:
        _start(process)
        sending.close()
        with suppress(EOFError):  # the process has ended, and nothing is left to read
            while True:
                report(*receiving.recv())
        process.join()
    except BaseException:
        if process.pid is not None:
            process.terminate()
            process.join(STOP_S)
            process.kill()
            process.join()
        raise
    finally:
        receiving.close()
    return process.exitcode or 0


def _start(process: Any) -> None:
    """Start a process that no interrupt from the keyboard reaches: whoever started it decides what stops."""
    stops = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        forkserver.ensure_running()
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)


def _work(cell: Cell, channel: Any) -> NoReturn:
    """A worker's whole life."""
    _prepare()
    from experiments.worker import CellBusy, CellFailed, measure

    try:
        measure(cell, lambda *facts: _send(channel, facts))
    except CellBusy:
        sys.exit(BUSY)
    except (CellFailed, KeyboardInterrupt):
        sys.exit(1)
    sys.exit(0)


def _search(work: tuple[Mapping[str, Any], Path, Sequence[Cell]], channel: Any) -> NoReturn:
    """A search's whole life."""
    _prepare()
    from experiments.configuration.build import build
    from experiments.worker import CellFailed
    from resispec.errors import InvalidInput

    search, path, cells = work
    try:
        build(search)(path, cells, lambda *facts: _send(channel, facts))
    except (InvalidInput, CellFailed, OSError) as error:
        sys.stderr.write(f"\rerror: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(1)
    sys.exit(0)


def _send(channel: Any, facts: tuple[str, int, int]) -> None:
    try:
        channel.send(facts)
    except OSError:
        os._exit(1)  # nobody listens any more


def _prepare() -> None:
    """Make a process end with the one that started it, and on SIGTERM in good order."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=follow, daemon=True).start()
