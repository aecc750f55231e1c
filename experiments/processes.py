"""Processes that work beside this one and die with it, and what they say while they work.

A process that dies takes nothing along but its own work, and it dies with the process that started it: both
hold for a SIGKILL, too. This module imports no torch; processes are forked from a server that has, so that
starting one takes no time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Sized
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any, NoReturn

STOP_S = 10.0  # for processes to end after they were asked to
WAIT_S = 1.0  # until it is looked again at what may start

Report = Callable[[str, int, int], None]
"""As `experiments.worker.Report`; that module imports torch."""

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["experiments.worker"])


def run_all(
    jobs: int,
    start: Callable[[Collection[Process]], Process | None],
    ended: Callable[[Process, int, str], None],
    pending: Sized,
) -> None:
    """Run processes, at most `jobs` at a time, until nothing is pending and none is running.

    start: starts the next one that may run beside those that are running, if any. ended: gets a process with
    its exit code and its reason for a failure. A signal to stop ends all processes first, and then this one.
    """
    running: dict[Any, Process] = {}
    try:
        while pending or running:
            while pending and len(running) < jobs and (process := start(running.values())) is not None:
                running[process.channel] = process
            if not running:
                time.sleep(WAIT_S)  # what is pending may not start yet
            for channel in connection.wait(list(running), WAIT_S):
                if not running[channel].read():
                    process = running.pop(channel)
                    ended(process, *process.end())
    finally:
        stop_all(running.values())


def stop_all(processes: Collection[Process]) -> None:
    """End processes: in good order if they do so in time, together and not one after another."""
    deadline = time.monotonic() + STOP_S
    try:
        for process in processes:
            process.ask_to_stop()
        for process in processes:
            process.wait(deadline)
    finally:  # also when somebody loses patience
        for process in processes:
            process.kill()


class Process:
    """A process that runs `target(work, channel)`, and what it says through its channel.

    number: of the work among all.
    """

    def __init__(self, number: int, target: Callable[..., NoReturn], work: Any, report: Report) -> None:
        self.number, self.work = number, work
        self.channel, sending = _PROCESSES.Pipe(duplex=False)
        self._process = _PROCESSES.Process(target=target, args=(work, sending))
        self._report, self._reason = report, ""
        try:
            _start(self._process)
            sending.close()
        except BaseException:
            stop_all([self])
            raise

    def read(self) -> bool:
        """Pass on one message, waiting for it; False once the process has ended and nothing is left."""
        try:
            message = self.channel.recv()
        except EOFError:
            return False
        if isinstance(message, str):
            self._reason = message
        else:
            self._report(*message)
        return True

    def end(self) -> tuple[int, str]:
        """The exit code of a process that has nothing left to say, and its reason for a failure."""
        self._process.join()
        self.channel.close()
        return self._process.exitcode or 0, self._reason

    def ask_to_stop(self) -> None:
        """Ask the process to end, if it ever began."""
        if self._process.pid is not None:
            self._process.terminate()

    def wait(self, deadline: float) -> None:
        """Wait for the process to end, until an instant of `time.monotonic`."""
        if self._process.pid is not None:
            self._process.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """End the process at once."""
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        self.channel.close()


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


def send(channel: Any, message: tuple[str, int, int] | str) -> None:
    """Say something through a process's channel; end this process when nobody listens any more."""
    try:
        channel.send(message)
    except OSError:
        os._exit(1)


def prepare() -> None:
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
