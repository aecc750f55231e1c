"""Runs cells and searches, each in a process of its own, with one progress line for all of them."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from experiments.cells import Cell
from experiments.configuration.build import build
from experiments.processes import Process, prepare, run_all, send
from experiments.progress import Progress
from experiments.store import CellStore, Status
from resispec.errors import InvalidInput, first_line
from resispec.files import locked

BUSY = 75  # the exit code of a worker whose cell another run is measuring


def run_cells(cells: Sequence[Cell], total: int | None = None) -> None:
    """Run cells that are not complete, each in a process of its own; go on after a failure.

    `jobs` of the configuration says how many run at a time. At most one of them is timed, so that beside it
    runs nothing but measurements whose own times do not count.

    A failure is printed in one line and recorded in the cell's status. A cell that another run is measuring
    is left to that run while others remain, then waited for. total: cells of the whole sweep, of which these
    remain.
    """
    total = total or len(cells)
    progress = Progress(sum(cell.config["num_prompts"] for cell in cells), total)
    pending = deque(enumerate(cells, start=total - len(cells) + 1))
    busy = 0

    def start(running: Collection[Process]) -> Process | None:
        place = _next([cell for _, cell in pending], [process.work for process in running])
        if place is None:
            return None
        number, cell = pending[place]
        del pending[place]
        return Process(number, _work, cell, progress.start(number, cell))

    def ended(process: Process, code: int, reason: str) -> None:
        nonlocal busy
        busy = busy + 1 if code == BUSY else 0
        if code != BUSY:
            progress.finish(process.number)
            if code:
                progress.say(f"error: {process.work}: {reason or _killed(process.work, code)}")
            return
        progress.put_back(process.number)
        pending.append((process.number, process.work))
        if busy >= len(pending):  # all that remain are being measured elsewhere
            progress.say_briefly(f"{len(pending)} cells are being measured by another run; waiting")
            time.sleep(1.0)

    try:
        run_all(_jobs(cells), start, ended)
    finally:
        progress.close()


def _next(pending: Sequence[Cell], running: Sequence[Cell]) -> int | None:
    """The place of the next cell to start: the first timed one while no other is running, else an untimed."""
    wants_timed = not any(cell.is_timed for cell in running) and any(cell.is_timed for cell in pending)
    return next((place for place, cell in enumerate(pending) if cell.is_timed == wants_timed), None)


def run_searches(wanted: Mapping[Path, Sequence[Cell]]) -> None:
    """Search for tree files, each in a process of its own; a failure prints one line and leaves no file.

    wanted: file -> the cells that need it.
    """
    progress = Progress(len(wanted), len(wanted))
    pending = deque(enumerate(wanted.items(), start=1))

    def start(_: Collection[Process]) -> Process | None:
        if not pending:
            return None
        number, (path, cells) = pending.popleft()
        return Process(number, _search, (path, cells), progress.start_search(number, path))

    def ended(process: Process, code: int, reason: str) -> None:
        progress.finish_search()
        if code:
            progress.say(f"error: the search for {process.work[0]} failed: {reason or _how(code)}")

    try:
        run_all(_jobs([cell for cells in wanted.values() for cell in cells]), start, ended)
    finally:
        progress.close()


def _jobs(cells: Sequence[Cell]) -> int:
    """How many processes work at a time: what the configuration says, but no more than there are cores."""
    return min([cell.config["jobs"] for cell in cells[:1]] + [os.cpu_count() or 1])


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


def _work(cell: Cell, channel: Any) -> NoReturn:
    """A worker's whole life."""
    prepare()
    from experiments.worker import CellBusy, measure

    try:
        measure(cell, lambda *facts: send(channel, facts))
    except CellBusy:
        sys.exit(BUSY)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it becomes one line
        _fail(channel, error, f"{cell}: ")
    sys.exit(0)


def _search(work: tuple[Path, Sequence[Cell]], channel: Any) -> NoReturn:
    """A search's whole life."""
    prepare()
    path, cells = work
    try:
        with locked(path.with_name(f".{path.name}.lock"), lambda: send(channel, ("waiting", 0, 1))):
            if not path.is_file():  # another run may have found it meanwhile
                build(cells[0].config["search"])(path, cells, lambda *facts: send(channel, facts))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it becomes one line
        _fail(channel, error)
    sys.exit(0)


def _fail(channel: Any, error: BaseException, prefix: str = "") -> NoReturn:
    """End the process with the reason in one line; one that was stopped gives none."""
    if isinstance(error, KeyboardInterrupt):
        sys.exit(1)
    known = isinstance(error, InvalidInput) or type(error).__name__ == "CellFailed"
    text = first_line(error) if known else f"{type(error).__name__}: {first_line(error)}"
    send(channel, text.removeprefix(prefix))
    sys.exit(1)
