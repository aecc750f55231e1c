"""The scheduler gives cells and tree searches to processes of their own, with one progress line.

How a process is started, heard and stopped is told in `experiments.processes`.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from analysis.load import Status, read_status
from experiments.cell import Cell, Reporter, build
from experiments.devices import gpus_of
from experiments.processes import BUSY, Worker, how_it_ended, ready, stop
from experiments.store import CellStore
from resispec.files import locked
from resispec.progress import LINES_S

Launch = Callable[[Sequence[Cell], int, Callable[[Cell], None], Callable[[], None]], None]
"""A function that runs cells, called as `run_cells`."""
AGAIN_S = 1.0  # seconds until such a cell is looked at again


@dataclass(eq=False)
class Job(Worker):
    """Work for a process of its own: cells to measure, or a tree to search for.

    number: its place among all jobs, from 1. name: its name in messages. ended: gets the exit code
    and the reasons for failures; returns lines for people, and the jobs that try once more. size:
    the number that reports count up to, for cells their prompts. pair: the cells' pair, as JSON.
    is_timed: whether its times count. not_before: instant of `time.monotonic` to wait for, since
    another run does this work.
    """

    number: int
    name: str
    ended: Callable[[int, list[str]], tuple[list[str], list[Job]]]
    size: int
    pair: str = ""
    is_timed: bool = False
    not_before: float = 0.0


def groups_of(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Groups of cells that one process measures in turns.

    Timed cells that differ only in their decoders are a group; any other cell is one by itself.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.setting if cell.is_timed else cell.cell_id, []).append(cell)
    return list(groups.values())


def run_cells(
    cells: Sequence[Cell],
    total: int,
    done: Callable[[Cell], None],
    untimed: Callable[[], None] = lambda: None,
) -> None:
    """Run cells that are not complete; go on after a failure.

    As many processes run at a time as every cell allows, see `jobs_of`, and on each of its GPUs. A
    process measures one of `groups_of`. A failure is printed in one line and recorded in the cell's
    status. Cells that a killed process left undone are tried once more, each by itself, and so are
    several cells of a process that ended without a reason. A cell that another run is measuring is
    left to that run while others remain, then waited for. total: number of cells of the whole
    sweep, of which these remain. done: called with every complete cell. untimed: called when cells
    have ended and no timed cell runs; none begins until it returns.
    """
    numbers = {id(cell): number for number, cell in enumerate(cells, start=total - len(cells) + 1)}

    def job(group: Sequence[Cell], is_retry: bool = False) -> Job:
        first, size = group[0], sum(cell.config["num_prompts"] for cell in group)
        pair = json.dumps(first.config["pair"], sort_keys=True)
        work, at_end = partial(_measure, group), partial(ended, group, is_retry)
        return Job(work, numbers[id(first)], str(first), at_end, size, pair, first.is_timed)

    def ended(
        group: Sequence[Cell], is_retry: bool, code: int, reasons: list[str]
    ) -> tuple[list[str], list[Job]]:
        lines, silent, how = outcome(group, reasons, done, is_well=code == 0)
        if silent and not how and not is_retry and (code < 0 or len(group) > 1):
            names = ", ".join(map(str, silent))
            retries = [job([cell], is_retry=True) for cell in silent]
            return [
                *lines,
                f"note: {how_it_ended(code)}; tried once more, each cell by itself: {names}",
            ], retries
        return lines + given_up(silent, how or how_it_ended(code)), []

    jobs = [job(group) for group in groups_of(cells)]
    gpus = gpus_of(cells[0].config)
    if len(gpus) > 1:
        jobs.sort(key=lambda job: not job.is_timed)  # those need a GPU on which nothing runs
    _run(jobs, total, min(jobs_of(cell.config) for cell in cells), gpus, untimed)


def outcome(
    cells: Sequence[Cell], reasons: Sequence[str], done: Callable[[Cell], None], is_well: bool
) -> tuple[list[str], list[Cell], str]:
    """The outcome of cells whose process has ended.

    Returns lines about failures, the cells that are not complete and have no line, and the reasons
    that name no cell. reasons: those of the process, "CELL: REASON" where they name one. done:
    called with every complete cell. is_well: whether the process ended as it should.
    """
    named = [
        reason for reason in reasons if reason.startswith(tuple(f"{cell}: " for cell in cells))
    ]
    silent, lines = [], [f"error: {reason}" for reason in named]
    for cell in cells:
        status = read_status(cell.folder, cell.config)
        if status.state == "done":
            done(cell)
        elif status.state == "stale" and is_well:
            lines.append(f"error: {cell}: while it was measured, {status.reason}")
        elif not any(reason.startswith(f"{cell}: ") for reason in named):
            silent.append(cell)
    return lines, silent, "; ".join(reason for reason in reasons if reason not in named)


def given_up(cells: Sequence[Cell], why: str) -> list[str]:
    """Record the failure of cells whose process could not do so itself; a line for each.

    A stale cell, which has not begun, keeps its rows and stays stale.
    """
    for cell in cells:
        store = CellStore(cell.folder)
        # the disk is full, or another run has taken over
        with suppress(OSError), store.locked():
            if read_status(cell.folder, cell.config).state not in ("done", "stale"):
                store.write_status(Status("failed", why))
    return [f"error: {cell}: {why}" for cell in cells]


def run_searches(wanted: Mapping[Path, Sequence[Cell]]) -> None:
    """Search for tree files, as many at a time as every search allows, see `jobs_of`.

    A failure prints one line and leaves no file. wanted: file -> the cells that need it, at least
    one file.
    """

    def ended(path: Path, code: int, reasons: list[str]) -> tuple[list[str], list[Job]]:
        why = "; ".join(reasons) or how_it_ended(code)
        return [] if path.is_file() else [f"error: the search for {path} failed: {why}"], []

    jobs = []
    for number, (path, cells) in enumerate(wanted.items(), start=1):
        search = build(cells[0].config["search"])
        work = partial(_search, search, path, cells)
        jobs.append(Job(work, number, path.name, partial(ended, path), search.size(cells)))
    configs = [cells[0].config for cells in wanted.values()]
    _run(jobs, len(jobs), min(map(jobs_of, configs)), gpus_of(configs[0]))


def free_gpus(
    job: Job,
    running: Sequence[Job],
    opened: Collection[str],
    gpus: Sequence[str | None],
    limit: int,
) -> list[str | None]:
    """The GPUs on which a job may start beside those that run, the emptiest first.

    [None] is the whole machine. No more than `limit` jobs run on a GPU, and a timed one alone.
    Without GPUs of its own a timed job has untimed ones beside it. A pair may have to be made: on
    GPUs its other cells wait until one has loaded it, else it is loaded while nothing else runs.
    opened: the pairs that were loaded.
    """
    pairs = {other.pair for other in running}
    if len(gpus) == 1 and running:
        pairs.add(job.pair)
        is_opening = not pairs <= {"", *opened}
    else:
        is_opening = job.pair in pairs - {"", *opened}
    if is_opening:
        return []

    def beside(gpu: str | None) -> list[Job]:
        return [other for other in running if other.gpu == gpu]

    def takes(gpu: str | None) -> bool:
        timed = [other.is_timed for other in (job, *beside(gpu))]
        most_timed = 1 if gpu is None or len(timed) == 1 else 0
        return len(timed) <= limit and sum(timed) <= most_timed

    return sorted(filter(takes, gpus), key=lambda gpu: len(beside(gpu)))


def jobs_of(config: Mapping[str, Any]) -> int:
    """The number of cells that run at a time: `jobs`, but no more than this process's cores allow.

    On an accelerator it is 1, and `jobs` on each of several `devices`.
    """
    if config["device"] != "cpu":
        return config["jobs"] if config["devices"] else 1
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(config["jobs"], cores // (config["num_threads"] or cores)))


def _run(
    pending: list[Job],
    total: int,
    limit: int,
    gpus: Sequence[str | None],
    untimed: Callable[[], None] = lambda: None,
) -> None:
    """Run jobs, at most `limit` at a time on each GPU.

    The next job is the first that may run beside the running ones, see `free_gpus`. A job whose
    work another run is doing is tried again after a while, and after the others. A signal to stop
    ends all processes first, and then this one. total: number of all jobs, of which these remain.
    untimed: see `run_cells`.
    """
    progress = Progress(sum(job.size for job in pending), total)
    running: list[Job] = []
    opened: set[str] = set()

    def begin(job: Job, gpu: str | None) -> None:
        report = progress.start(job.number, job.name, job.size)

        def heard(*facts: Any) -> None:
            opened.add(job.pair)  # a process that tells something has loaded it
            report(*facts)

        job.gpu = gpu
        pending.remove(job)
        running.append(job)  # before it starts, so that a signal finds it here
        job.start(heard)

    try:
        while pending or running:
            now = time.monotonic()
            awake = (job for job in pending if job.not_before <= now)
            free = ((job, free_gpus(job, running, opened, gpus, limit)) for job in awake)
            job, places = next((pair for pair in free if pair[1]), (None, []))
            if job is not None:
                begin(job, places[0])
                continue
            if not running:
                time.sleep(AGAIN_S)  # what is pending may not start yet
            for job in ready(running, AGAIN_S):
                if job.read():
                    continue
                code, reasons = job.end()
                running.remove(job)
                if code == BUSY:
                    progress.show(job.number, f"{job.name} is being measured by another run")
                    job.not_before = time.monotonic() + AGAIN_S
                    pending.append(job)
                    continue
                opened.add(job.pair)  # the pair is there now, or never will be
                lines, retries = job.ended(code, reasons)
                progress.finish(job.number, job.size, is_over=not retries)
                pending[:0] = retries
                for line in lines:
                    progress.say(line)
                if not any(other.is_timed for other in running):
                    untimed()
    finally:
        progress.close()
        stop(running)


def _measure(cells: Sequence[Cell], report: Reporter) -> None:
    from experiments.worker import measure

    measure(cells, report)


def _search(search: Any, path: Path, cells: Sequence[Cell], report: Reporter) -> None:
    with locked(
        path.with_name(f".{path.name}.lock"), lambda: report("waiting", 0, search.size(cells))
    ):
        if not path.is_file():
            search(path, cells, report)


class Progress:
    """The progress of jobs, of which several may run at a time, with the time left.

    On a terminal it is one line, elsewhere, as in a log, a new one every LINES_S seconds. size: the
    sum of the jobs' sizes. count: the number of jobs.
    """

    def __init__(self, size: int, count: int) -> None:
        self._count = count
        self._left: dict[int, int] = {}  # number of a running job -> the rest of its size
        self._is_terminal, self._next_line = sys.stderr.isatty(), 0.0
        bar, interval, screen = " |{bar:12}|", 0.1, sys.stderr
        if not self._is_terminal:  # tqdm only counts; nobody sees its bar
            bar, interval, screen = "", LINES_S, io.StringIO()
        layout = f"{{desc}}{bar} {{percentage:3.0f}}% [{{elapsed}}<{{remaining}}]"
        options: dict[str, Any] = {"bar_format": layout, "mininterval": interval, "file": screen}
        self._bar = tqdm(total=size, dynamic_ncols=True, leave=False, **options)
        self.close = self._bar.close

    def start(self, number: int, name: str, size: int) -> Reporter:
        """Note that the job with this number begins; returns the function for its reports."""
        self.show(number, name)
        begun, self._left[number] = False, size

        def report(what: str, done: int, total: int) -> None:
            nonlocal begun
            self.show(number, f"{what} {done}/{total}")
            measured = max(0, self._left[number] - (total - done))
            if begun:
                self._bar.update(measured)
            else:  # work that was done before the job began takes no time
                self._bar.total -= measured
            self._left[number] -= measured
            begun = True

        return report

    def finish(self, number: int, size: int, is_over: bool) -> None:
        """Note that a job of this size has ended.

        is_over: whether nothing of it is tried once more.
        """
        left = self._left.pop(number)
        # Work that was left out took no time; jobs that try again begin with what is done, see
        # `start`.
        self._bar.total += -left if is_over else size - left

    def say(self, line: str) -> None:
        """Print a line above the progress line."""
        self._bar.write(line, file=sys.stderr)

    def show(self, number: int, what: str) -> None:
        """Show in the progress line what a job does."""
        self._bar.set_description_str(f"[{number}/{self._count}] {what}", refresh=self._is_terminal)
        if not self._is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINES_S
            self.say(str(self._bar))
