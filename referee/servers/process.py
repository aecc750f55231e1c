"""Process of a server: started by a command, awaited at its address, stopped with its children."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from referee.servers.client import Server
from resispec.errors import InvalidInput, first_line, printable

LOADING = httpx.codes.SERVICE_UNAVAILABLE
"""The status with which llama.cpp's and SGLang's servers say that they load a model."""
LAST_BYTES = 8192
"""The end of a log in which its last line is looked for."""


class ServerProcess:
    """A server that runs while this context is open, in a group of processes of its own.

    command: the program and its arguments; a text is split into words as a shell would, but no
    shell reads it. address: an address like http://localhost:8000, at which nothing may answer
    before the start; the context opens when it answers with any HTTP status but 503 (a model is
    being loaded). log: the file to which what the server prints is added. start_s: the limit of the
    start in seconds. stop_s: the time in seconds from SIGTERM to SIGKILL.

    Raises InvalidInput for an empty or unbalanced command and a bad address. On entering it raises
    InvalidInput if the program cannot be started, if something answers already, and, after
    everything is stopped, if the server ends or the time is over before it answers.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        address: str,
        log: Path,
        start_s: float = 600,
        stop_s: float = 10,
    ) -> None:
        self.words = words_of(command)
        self.address = Server(address).url  # which refuses an address that is none
        self.log, self.start_s, self.stop_s = log, start_s, stop_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._answers():
            raise InvalidInput(
                f"something answers at {self.address} before {self.words[0]!r} is started; "
                "allowed: an address that is free"
            )
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as file:
                self._process = subprocess.Popen(
                    self.words,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that a signal reaches its children, and they alone
                )
        except OSError as error:
            raise InvalidInput(
                f"the server {self.words[0]!r} cannot be started: {first_line(error)}"
            ) from error
        try:
            self._wait(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and its children, unless they have ended."""
        process, self._process = self._process, None
        if process is None:
            return
        # A server without children has no group any more once it has ended.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(self.stop_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def last_line(self) -> str:
        """The last line of the log that has a word, made `printable` and cut to 200 characters."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LAST_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        words = (" ".join(line.split()) for line in reversed(lines))
        return printable(next(filter(None, words), "nothing"))[:200]

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + self.start_s
        while True:
            # First the process: an answer may be that of another one, which has the port.
            if (code := process.poll()) is not None:
                reason = f"signal {-code}" if code < 0 else f"exit code {code}"
                problem = f"ended before {self.address} answered ({reason})"
                break
            if self._answers():
                return
            if time.monotonic() > end:
                problem = f"did not answer at {self.address} within {self.start_s:g} s"
                break
            time.sleep(0.1)
        raise InvalidInput(
            f"the server {self.words[0]!r} {problem}; the last line of {self.log} is: "
            f"{self.last_line()}"
        )

    def _answers(self) -> bool:
        try:
            status = httpx.get(self.address, timeout=5, trust_env=False).status_code
        except httpx.HTTPError:
            return False
        return status != LOADING


def words_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """The words of a command; a text is split by the rules of a shell.

    Raises InvalidInput if there is no word, or a quote is not closed.
    """
    try:
        words = tuple(shlex.split(command) if isinstance(command, str) else command)
    except ValueError as error:
        raise InvalidInput(
            f"{command!r} is no command ({first_line(error)}); allowed: a program and its arguments"
        ) from error
    if not words or not words[0]:
        raise InvalidInput("a server's command is empty; allowed: a program and its arguments")
    return words
