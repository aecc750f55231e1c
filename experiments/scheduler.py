"""The scheduler runs cells and searches for trees in processes of their own,
with one progress line for all.

A process that dies loses nothing but its own work, and it dies with the process that started it:
both hold for a SIGKILL, too. This module does not import torch; processes are forked from a server
that has imported it, so that starting one takes no time.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any

from tqdm import tqdm

from analysis.load import Status, read_status
from experiments.cell import Cell, CellBusy, CellFailed, Reporter, build
from experiments.store import CellStore
from resispec.errors import InvalidInput, first_line
from resispec.files import locked
from resispec.progress import LINES_S

Launch = Callable[[Sequence[Cell], int, Callable[[Cell], None], Callable[[], None]], None]
"""A function that runs cells, called as `run_cells`."""
BUSY = 75  # the exit code of a worker whose cell another run is measuring
AGAIN_S = 1.0  # seconds until such a cell is looked at again
STOP_S = 10.0  # seconds that processes have to end after they were asked to
STOPS = {signal.SIGINT, signal.SIGTERM}

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["experiments.worker"])


@contextmanager
def unstopped() -> Iterator[None]:
    """Block stop signals while processes, or the server that forks them, start:
    the parent stops them.
    """
    # else the server's start starts it, which unblocks the signals
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


@dataclass(eq=False)
class Job:
    """Work for a process of its own: cells to measure, or a tree to search for.

    number: its place among all jobs, from 1. name: its name in messages. work: the function that
    the process calls, with a `Reporter`. ended: gets the exit code and the reasons for failures;
    returns lines for people, and the jobs that try once more. size: the number that reports count
    up to, for cells their prompts. pair: the cells' pair, as JSON. is_timed: whether no other timed
    job may run beside it. not_before: instant of `time.monotonic` to wait for, since another run
    does this work. process: None before the start.
    """

    number: int
    name: str
    work: Callable[[Reporter], object]
    ended: Callable[[int, list[str]], tuple[list[str], list[Job]]]
    size: int
    pair: str = ""
    is_timed: bool = False
    not_before: float = 0.0
    process: Any = None

    def start(self, report: Reporter) -> None:
        """Start the process. Raises InvalidInput if the server that forks it ends meanwhile."""
        self._report, self._reasons = report, list[str]()
        self.channel, sender = PROCESSES.Pipe(duplex=False)
        self.process = PROCESSES.Process(target=_live, args=(self.work, sender))
        with unstopped():
            try:
                self.process.start()
            except (
                EOFError,
                ConnectionError,
            ) as error:  # somebody, or a lack of memory, has killed it
                self.channel.close()
                reason = "the server of processes was killed before it could start one"
                raise InvalidInput(
                    f"{reason}; the same command goes on from what is finished"
                ) from error
            finally:
                sender.close()

    def read(self) -> bool:
        """Wait for one message and pass it on; False once the process has ended
        and no message is left.
        """
        try:
            message = self.channel.recv()
        except (EOFError, OSError):  # OSError: killed within a message
            return False
        if isinstance(message, str):
            self._reasons.append(message)
        else:
            self._report(*message)
        return True

    def end(self) -> tuple[int, list[str]]:
        """The exit code of a process without further messages,
        and the reasons for failures that it gave.
        """
        self.process.join()
        self.channel.close()
        return self.process.exitcode or 0, self._reasons


def run_cells(
    cells: Sequence[Cell],
    total: int,
    done: Callable[[Cell], None],
    untimed: Callable[[], None] = lambda: None,
) -> None:
    """Run cells that are not complete; go on after a failure.

    As many processes run at a time as every cell allows, see `jobs_of`. One process measures timed
    cells that differ in their decoders alone, in turns. A failure is printed in one line and
    recorded in the cell's status. Cells that a killed process left undone are tried once more, each
    by itself, and so are several cells of a process that ended without a reason. A cell that
    another run is measuring is left to that run while others remain, then waited for. total: number
    of cells of the whole sweep, of which these remain. done: called with every complete cell.
    untimed: called when cells have ended and no timed cell runs; none begins until it returns.
    """
    numbers = {id(cell): number for number, cell in enumerate(cells, start=total - len(cells) + 1)}

    def job(group: Sequence[Cell], is_retry: bool = False) -> Job:
        first, size = group[0], sum(cell.config["num_prompts"] for cell in group)
        pair = json.dumps(first.config["pair"], sort_keys=True)
        work, at_end = partial(_measure, group), partial(ended, group, is_retry)
        return Job(numbers[id(first)], str(first), work, at_end, size, pair, first.is_timed)

    def ended(
        group: Sequence[Cell], is_retry: bool, code: int, reasons: list[str]
    ) -> tuple[list[str], list[Job]]:
        named = [
            reason for reason in reasons if reason.startswith(tuple(f"{cell}: " for cell in group))
        ]
        how = "; ".join(reason for reason in reasons if reason not in named)
        silent, lines = [], [f"error: {reason}" for reason in named]
        for cell in group:
            status = read_status(cell.folder)
            if status.state == "done":
                done(cell)
            elif status.state == "stale" and code == 0:
                lines.append(f"error: {cell}: while it was measured, {status.reason}")
            elif not any(reason.startswith(f"{cell}: ") for reason in named):
                silent.append(cell)
        if silent and not how and not is_retry and (code < 0 or len(group) > 1):
            names = ", ".join(map(str, silent))
            retries = [job([cell], is_retry=True) for cell in silent]
            return [
                *lines,
                f"note: {_how(code)}; tried once more, each cell by itself: {names}",
            ], retries
        for cell in silent:  # the worker could not record how it ended
            store, why = CellStore(cell.folder), how or _how(code)
            # the disk is full, or another run has taken over
            with suppress(OSError), store.locked():
                store.write_status(Status("failed", why))
            lines.append(f"error: {cell}: {why}")
        return lines, []

    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.setting if cell.is_timed else cell.cell_id, []).append(cell)
    _run(
        [job(group) for group in groups.values()],
        total,
        min(jobs_of(cell.config) for cell in cells),
        untimed,
    )


def run_searches(wanted: Mapping[Path, Sequence[Cell]]) -> None:
    """Search for tree files, as many at a time as every search allows, see `jobs_of`.

    A failure prints one line and leaves no file. wanted: file -> the cells that need it, at least
    one file.
    """

    def ended(path: Path, code: int, reasons: list[str]) -> tuple[list[str], list[Job]]:
        why = "; ".join(reasons) or _how(code)
        return [] if path.is_file() else [f"error: the search for {path} failed: {why}"], []

    jobs = []
    for number, (path, cells) in enumerate(wanted.items(), start=1):
        search = build(cells[0].config["search"])
        work = partial(_search, search, path, cells)
        jobs.append(Job(number, path.name, work, partial(ended, path), search.size(cells)))
    _run(jobs, len(jobs), min(jobs_of(cells[0].config) for cells in wanted.values()))


def may_run_beside(job: Job, running: Sequence[Job], opened: Collection[str]) -> bool:
    """Whether a job may start beside those that run.

    At most one of them is timed, and the first cell of a pair runs alone, since the pair may have
    to be trained. opened: the pairs of cells that have ended.
    """
    if not running:
        return True
    if not {job.pair, *(other.pair for other in running)} <= {"", *opened}:
        return False
    return not (job.is_timed and any(other.is_timed for other in running))


def jobs_of(config: Mapping[str, Any]) -> int:
    """The number of cells that run at a time: `jobs`, but no more than this process's cores allow.

    On an accelerator it is 1.
    """
    if config["device"] != "cpu":
        return 1
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(config["jobs"], cores // (config["num_threads"] or cores)))


def _run(
    pending: list[Job], total: int, limit: int, untimed: Callable[[], None] = lambda: None
) -> None:
    """Run jobs, at most `limit` at a time; the next job is the first
    that may run beside the running ones.

    total: number of all jobs, of which these remain. A job whose work another run is doing is tried
    again after a while, and after the others. A signal to stop ends all processes first, and then
    this one. untimed: see `run_cells`.
    """
    progress = Progress(sum(job.size for job in pending), total)
    running: list[Job] = []
    opened: set[str] = set()
    try:
        while pending or running:
            now = time.monotonic()
            ready = (
                job
                for job in pending
                if job.not_before <= now and may_run_beside(job, running, opened)
            )
            if len(running) < limit and (job := next(ready, None)) is not None:
                pending.remove(job)
                running.append(job)  # before it starts, so that a signal finds it here
                job.start(progress.start(job.number, job.name, job.size))
                continue
            if not running:
                time.sleep(AGAIN_S)  # what is pending may not start yet
            jobs = {job.channel: job for job in running}
            for job in [jobs[channel] for channel in connection.wait(list(jobs), AGAIN_S)]:
                if job.read():
                    continue
                running.remove(job)
                code, reasons = job.end()
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
        _stop([job.process for job in running if job.process and job.process.pid])


def _stop(processes: Collection[Any]) -> None:
    """End processes, all at the same time: in good order if they do so within STOP_S,
    else by force.
    """
    deadline = time.monotonic() + STOP_S
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:  # also when a second signal interrupts the wait
        for process in processes:
            process.kill()
            process.join()


def follow_parent() -> None:
    """End this process when the one that started it ends, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _how(code: int) -> str:
    """A line about how a worker ended that gave no reason."""
    if code < 0:
        return f"the worker was killed by signal {-code}"
    return (
        f"the worker ended with exit code {code}" if code else "the worker ended without a result"
    )


def _live(work: Callable[[Reporter], object], channel: Any) -> None:
    """Do the work of a process, which ends with the process that started it,
    and on SIGTERM in good order.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    follow_parent()

    def send(message: tuple[str, int, int] | str) -> None:
        try:
            channel.send(message)
        except OSError:
            os._exit(1)  # nobody listens any more

    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        work(lambda *facts: send(facts))
    except CellBusy:
        sys.exit(BUSY)
    except KeyboardInterrupt:  # stopped, which needs no reason
        sys.exit(1)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it becomes one line
        kind = "" if isinstance(error, InvalidInput) else f"{type(error).__name__}: "
        reasons = (
            str(error).splitlines() if isinstance(error, CellFailed) else [kind + first_line(error)]
        )
        for reason in reasons:
            send(reason)
        sys.exit(1)


def _measure(cells: Sequence[Cell], report: Reporter) -> None:
    from experiments.worker import measure

    measure(cells, report)


def _search(search: Any, path: Path, cells: Sequence[Cell], report: Reporter) -> None:
    with locked(
        path.with_name(f".{path.name}.lock"), lambda: report("waiting", 0, search.size(cells))
    ):
        if not path.is_file():  # another run may have found it meanwhile
            search(path, cells, report)


class Progress:
    """The progress of jobs, of which several may run at a time, with the time left.

    On a terminal it is one line, elsewhere, as in a log, a new one every LINES_S seconds.
    size: the sum of the jobs' sizes. count: the number of jobs.
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
