"""Processes that work for a command: how they are started, heard, stopped, and given work in turn.

A process that dies loses nothing but its own work, and it dies with the process that started it:
both hold for a SIGKILL, too. This module does not import torch; processes are forked from a server
that has imported it, so that starting one takes no time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, resource_tracker
from typing import Any, TypeVar

from tqdm import tqdm

from experiments.cell import CellBusy, CellFailed
from resispec.errors import InvalidInput, first_line
from resispec.progress import LINES_S

BUSY = 75  # the exit code of a process whose cell another run is measuring
STOP_S = 10.0  # seconds that processes have to end after they were asked to
STOPS = {signal.SIGINT, signal.SIGTERM}
GPUS = "CUDA_VISIBLE_DEVICES"

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["experiments.worker"])

Tell = Callable[..., object]
"""A function of a process whose arguments reach the command, see `Worker.start`."""


@dataclass(eq=False)
class Worker:
    """A piece of work for a process of its own.

    work: the function that the process calls, with a `Tell`. gpu: the process's value of GPUS; None
    gives it the command's. process: None before the start.
    """

    work: Callable[[Tell], object]
    gpu: str | None = field(default=None, kw_only=True)
    process: Any = field(default=None, kw_only=True)

    def start(self, heard: Callable[..., object]) -> None:
        """Start the process. heard: called by `read` with whatever the process tells.

        Raises InvalidInput if the server that forks it ends meanwhile.
        """
        self._heard, self._reasons = heard, list[str]()
        self.channel, sender = PROCESSES.Pipe(duplex=False)
        gpu = os.environ.get(GPUS) if self.gpu is None else self.gpu
        self.process = PROCESSES.Process(target=_live, args=(self.work, gpu, sender))
        with _unstopped():
            try:
                self.process.start()
            except (EOFError, ConnectionError) as error:
                # somebody, or a lack of memory, has killed it
                self.channel.close()
                reason = "the server of processes was killed before it could start one"
                raise InvalidInput(
                    f"{reason}; the same command goes on from what is finished"
                ) from error
            finally:
                sender.close()

    def read(self) -> bool:
        """Wait for a message and pass it on; False if the process has ended and none is left."""
        try:
            message = self.channel.recv()
        except (EOFError, OSError):  # OSError: killed within a message
            return False
        if isinstance(message, str):
            self._reasons.append(message)
        else:
            self._heard(*message)
        return True

    def end(self) -> tuple[int, list[str]]:
        """The exit code of a process without further messages, and its reasons for failures."""
        self.process.join()
        self.channel.close()
        return self.process.exitcode or 0, self._reasons


SomeWorker = TypeVar("SomeWorker", bound=Worker)


def ready(workers: Sequence[SomeWorker], seconds: float) -> list[SomeWorker]:
    """The workers that have something to read, or have ended; none after so many seconds."""
    by_channel = {worker.channel: worker for worker in workers}
    return [by_channel[channel] for channel in connection.wait(list(by_channel), seconds)]


def stop(workers: Collection[Worker], patience_s: float = STOP_S) -> None:
    """End workers' processes, all at once: in good order within `patience_s`, else by force."""
    processes = [worker.process for worker in workers if worker.process and worker.process.pid]
    deadline = time.monotonic() + patience_s
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:  # also when a second signal interrupts the wait
        for process in processes:
            process.kill()
            process.join()


def how_it_ended(code: int) -> str:
    """A line about how a process ended that gave no reason."""
    if code < 0:
        return f"the worker was killed by signal {-code}"
    return (
        f"the worker ended with exit code {code}" if code else "the worker ended without a result"
    )


def results(
    function: Callable[..., Any],
    items: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    bar: tqdm,
    gpus: Sequence[str | None] = (None, None),
) -> list[Any]:
    """Results of a function for items, its arguments, in their order.

    Each process takes the next item once it is done with one, and so keeps what the function keeps.
    names: of the items, for errors. bar: moved with each result, and shown each LINES_S without
    one. gpus: a process for each of them, see `Worker`.

    Raises InvalidInput with the first reason that a process gives, and for an item, by its name,
    that ends its process. Whatever is raised, an interrupt included, ends all processes at once.
    """
    taken = PROCESSES.Value("q", 0)
    found: dict[int, Any] = {}
    begun: dict[Worker, int] = {}

    def hear(worker: Worker, number: int, *result: Any) -> None:
        if not result:
            begun[worker] = number
            return
        del begun[worker]
        [found[number]] = result
        bar.update()

    work = partial(_take, function, items, taken)
    workers = [Worker(work, gpu=gpu) for gpu in gpus[: len(items)]]
    running: list[Worker] = []
    try:
        for worker in workers:
            running.append(worker)
            worker.start(partial(hear, worker))
        while running:
            speaking = ready(running, LINES_S)
            if not speaking:
                bar.refresh()
            for worker in speaking:
                if worker.read():
                    continue
                code, reasons = worker.end()
                running.remove(worker)
                if reasons:
                    raise InvalidInput(reasons[0])
                if worker in begun:
                    signalled = f" (signal {-code})" if code < 0 else ""
                    raise InvalidInput(f"{names[begun[worker]]} ended its process{signalled}")
                if code:
                    raise InvalidInput(how_it_ended(code))
    finally:
        stop(running, patience_s=0.0)
    return [found[number] for number in range(len(items))]


def _take(
    function: Callable[..., Any], items: Sequence[tuple[Any, ...]], taken: Any, tell: Tell
) -> None:
    """Take items that no other process has taken, until none is left."""
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(items):
            return
        tell(number)
        tell(number, function(*items[number]))


@contextmanager
def _unstopped() -> Iterator[None]:
    """Block stop signals while processes or their server start, since the parent stops them."""
    # else the server's start starts it, which unblocks the signals
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _live(work: Callable[[Tell], object], gpu: str | None, channel: Any) -> None:
    """Do the work of a process that ends with its parent, and on SIGTERM in good order."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    _follow_parent()
    # CUDA reads it once, when it is first used; the server may have been started with another one
    os.environ.pop(GPUS, None)
    if gpu is not None:
        os.environ[GPUS] = gpu

    def send(message: tuple[Any, ...] | str) -> None:
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


def _follow_parent() -> None:
    """End this process when the one that started it ends, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
