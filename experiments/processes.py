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
from collections.abc import Callable, Collection
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any, NoReturn

STOP_S = 10.0  # for a process to end after it was asked to

Report = Callable[[str, int, int], None]
"""As `experiments.worker.Report`; that module imports torch."""

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["experiments.worker"])


def run_all(
    jobs: int,
    start: Callable[[Collection[Process]], Process | None],
    ended: Callable[[Process, int, str], None],
) -> None:
    """Run processes, at most `jobs` at a time, until there is none to start and none is running.

    start: starts the next one that may run beside those that are running, if any. ended: gets a process with
    its exit code and its reason for a failure. A signal to stop ends all processes first, and then this one.
    """
    running: dict[Any, Process] = {}
    try:
        while True:
            while len(running) < jobs and (process := start(running.values())) is not None:
                running[process.channel] = process
            if not running:
                return
            for channel in connection.wait(list(running)):
                if not running[channel].read():
                    process = running.pop(channel)
                    ended(process, *process.end())
    finally:
        for process in running.values():
            process.stop()


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
            self.stop()
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

    def stop(self) -> None:
        """End the process: in good order if it does so in time."""
        if self._process.pid is not None:
            self._process.terminate()
            self._process.join(STOP_S)
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
