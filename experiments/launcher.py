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
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from experiments.cells import Cell
from experiments.configuration.build import build
from experiments.store import CellStore, Status
from resispec.errors import InvalidInput, first_line
from resispec.files import locked

BUSY = 75  # the exit code of a worker whose cell another run is measuring
STOP_S = 10.0  # for a worker to end after it was asked to

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["experiments.worker"])


class Progress:
    """One line on stderr: which cell, how far it is, and how long all cells will take."""

    def __init__(self, num_prompts: int, num_cells: int) -> None:
        self._num_cells, self._number, self._done, self._total = num_cells, 0, 0, 0
        layout = "{desc} |{bar:12}| {percentage:3.0f}% [{elapsed}<{remaining}]"
        interval = 0.1 if sys.stderr.isatty() else 5.0
        self._bar = tqdm(
            total=num_prompts, bar_format=layout, dynamic_ncols=True, mininterval=interval, leave=False
        )

    def start(self, number: int, cell: Cell) -> None:
        """A cell begins, the `number`-th of all."""
        self._number, self._done, self._total = number, -1, cell.config["num_prompts"]
        self._bar.set_description_str(f"[{number}/{self._num_cells}] {cell}")

    def report(self, what: str, done: int, total: int) -> None:
        """See `experiments.worker.Report`. What a cell begins with was there before and takes no time."""
        if self._done < 0:
            self._bar.total, self._done = self._bar.total - done, done
        self._bar.set_description_str(
            f"[{self._number}/{self._num_cells}] {what} {done}/{total}", refresh=False
        )
        self._bar.update(max(0, done - self._done))
        self._done = max(done, self._done)

    def finish(self) -> None:
        """A cell has ended, complete or not; nothing of it remains to be waited for."""
        self._bar.total -= self._total - max(0, self._done)
        self._bar.refresh()

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
    total = total or len(cells)
    progress = Progress(sum(cell.config["num_prompts"] for cell in cells), total)
    pending = deque(enumerate(cells, start=total - len(cells) + 1))
    busy = 0
    try:
        while pending:
            number, cell = pending.popleft()
            progress.start(number, cell)
            code, reason = _in_a_process(_work, cell, progress.report)
            busy = busy + 1 if code == BUSY else 0
            if code == BUSY:
                pending.append((number, cell))
                progress.report(f"{cell}: waiting for another run", 0, cell.config["num_prompts"])
                if busy >= len(pending):  # all that remain are being measured elsewhere
                    time.sleep(1.0)
                continue
            progress.finish()
            if code:
                progress.say(f"error: {cell}: {reason or _killed(cell, code)}")
    finally:
        progress.close()


def run_search(search: Mapping[str, Any], path: Path, cells: Sequence[Cell]) -> bool:
    """Search for a tree file in a process of its own; whether it was found. A failure prints one line."""
    progress = Progress(1, 1)
    try:
        code, reason = _in_a_process(_search, (search, path, cells), progress.report)
        if code:
            progress.say(f"error: the search for {path} failed: {reason or _how(code)}")
        return code == 0
    finally:
        progress.close()


def _how(code: int) -> str:
    return (
        f"the worker was killed by signal {-code}" if code < 0 else f"the worker ended with exit code {code}"
    )


def _killed(cell: Cell, code: int) -> str:
    """Record, for a worker that could not do so itself, how it ended; return that."""
    store = CellStore(cell.folder)
    with suppress(OSError, TimeoutError), store.locked():  # the disk is full, or another run has taken over
        if store.status().state != "done":
            store.write_status(Status("failed", _how(code)))
    return _how(code)


def _in_a_process(
    target: Callable[..., NoReturn], work: Any, report: Callable[[str, int, int], None]
) -> tuple[int, str]:
    """Run `target(work, channel)` in a process and pass on what it reports.

    Returns its exit code, and the reason that it gave for a failure. A signal to stop ends the process
    first, and then this one.
    """
    receiving, sending = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=target, args=(work, sending))
    reason = ""
    try:
        _start(process)
        sending.close()
        with suppress(EOFError):  # the process has ended, and nothing is left to read
            while True:
                message = receiving.recv()
                if isinstance(message, str):
                    reason = message
                else:
                    report(*message)
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
    return process.exitcode or 0, reason


def _start(process: Any) -> None:
    """Start a process that no interrupt from the keyboard reaches: whoever started it decides what stops."""
    resource_tracker.ensure_running()  # the server's start would start it, which lets signals through
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
    from experiments.worker import CellBusy, measure

    try:
        measure(cell, lambda *facts: _send(channel, facts))
    except CellBusy:
        sys.exit(BUSY)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it becomes one line
        _fail(channel, error, f"{cell}: ")
    sys.exit(0)


def _search(work: tuple[Mapping[str, Any], Path, Sequence[Cell]], channel: Any) -> NoReturn:
    """A search's whole life."""
    _prepare()
    search, path, cells = work
    try:
        with locked(path.with_name(f".{path.name}.lock"), lambda: _send(channel, ("waiting", 0, 1))):
            if not path.is_file():  # another run may have found it meanwhile
                build(search)(path, cells, lambda *facts: _send(channel, facts))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it becomes one line
        _fail(channel, error)
    sys.exit(0)


def _fail(channel: Any, error: BaseException, prefix: str = "") -> NoReturn:
    """End the process with the reason in one line; one that was stopped gives none."""
    if isinstance(error, KeyboardInterrupt):
        sys.exit(1)
    known = isinstance(error, InvalidInput) or type(error).__name__ == "CellFailed"
    text = first_line(error) if known else f"{type(error).__name__}: {first_line(error)}"
    _send(channel, text.removeprefix(prefix))
    sys.exit(1)


def _send(channel: Any, message: tuple[str, int, int] | str) -> None:
    try:
        channel.send(message)
    except OSError:
        os._exit(1)  # nobody listens any more


def _prepare() -> None:
    """Make a process end with the one that started it, and on SIGTERM in good order."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    follow_parent()


def follow_parent() -> None:
    """End this process when the one that started it ends, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
