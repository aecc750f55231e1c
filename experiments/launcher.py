"""Runs cells and searches, each in a process of its own, with one progress line for all of them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
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
AGAIN_S = 1.0  # until such a cell is looked at again


def run_cells(cells: Sequence[Cell], total: int | None = None) -> None:
    """Run cells that are not complete, each in a process of its own; go on after a failure.

    `jobs` of the configuration says how many run at a time; `_Queue` says which. A failure is printed in one
    line and recorded in the cell's status. A cell that another run is measuring is left to that run while
    others remain, then waited for. total: cells of the whole sweep, of which these remain.
    """
    total = total or len(cells)
    progress = Progress(sum(cell.config["num_prompts"] for cell in cells), total)
    queue = _Queue(enumerate(cells, start=total - len(cells) + 1))

    def start(running: Collection[Process]) -> Process | None:
        found = queue.next([process.work for process in running])
        if found is None:
            return None
        number, cell = found
        return Process(number, _work, cell, progress.start(number, cell))

    def ended(process: Process, code: int, reason: str) -> None:
        if code == BUSY:
            progress.put_back(process.number)
            queue.put_back(process.number, process.work)
            progress.say_briefly(f"{process.work} is being measured by another run")
            return
        queue.opened(process.work)
        progress.finish(process.number)
        if code:
            progress.say(f"error: {process.work}: {reason or _killed(process.work, code)}")

    try:
        run_all(jobs_of(cells[0].config) if cells else 1, start, ended, queue)
    finally:
        progress.close()


class _Queue:
    """The cells that are still to be run, and which of them may start beside those that are running.

    Cells start in their order, but for this: of those that run at a time at most one is timed, and the first
    cell of a pair runs alone, since the pair may have to be trained. So beside a timed cell runs nothing but
    a measurement whose own times do not count.
    """

    def __init__(self, cells: Iterable[tuple[int, Cell]]) -> None:
        self._pending = deque(cells)
        self._opened: set[str] = set()
        self._not_before: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def next(self, running: Sequence[Cell]) -> tuple[int, Cell] | None:
        """Take the next cell that may start now, with its number; None when there is none."""
        now = time.monotonic()
        for place, (number, cell) in enumerate(self._pending):
            if self._not_before.get(number, 0.0) <= now and self._may_start(cell, running):
                del self._pending[place]
                return number, cell
        return None

    def _may_start(self, cell: Cell, running: Sequence[Cell]) -> bool:
        if not running:
            return True
        if not {_pair(cell), *map(_pair, running)} <= self._opened:
            return False
        return not (cell.is_timed and any(one.is_timed for one in running))

    def opened(self, cell: Cell) -> None:
        """A cell has ended: its pair is there, or will not be."""
        self._opened.add(_pair(cell))

    def put_back(self, number: int, cell: Cell) -> None:
        """Another run is measuring a cell: look again after a while, and after the others."""
        self._not_before[number] = time.monotonic() + AGAIN_S
        self._pending.append((number, cell))


def _pair(cell: Cell) -> str:
    return json.dumps(cell.config["pair"], sort_keys=True)


def jobs_of(config: Mapping[str, Any]) -> int:
    """How many cells run at a time: `jobs`, but no more than the cores that this process may use allow.

    On an accelerator it is one.
    """
    if config["device"] != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(config["jobs"], cores // (config["num_threads"] or cores)))


def run_searches(wanted: Mapping[Path, Sequence[Cell]]) -> None:
    """Search for tree files, each in a process of its own, as many at a time as `jobs` says.

    A failure prints one line and leaves no file. wanted: file -> the cells that need it, at least one file.
    """
    config = next(iter(wanted.values()))[0].config
    progress = Progress(len(wanted), len(wanted))
    pending = deque(enumerate(wanted.items(), start=1))

    def start(_: Collection[Process]) -> Process | None:
        number, (path, cells) = pending.popleft()
        return Process(number, _search, (path, cells), progress.start_search(number, path))

    def ended(process: Process, code: int, reason: str) -> None:
        progress.finish_search()
        if code:
            progress.say(f"error: the search for {process.work[0]} failed: {reason or _how(code)}")

    try:
        run_all(jobs_of(config), start, ended, pending)
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
