"""Errors that a user can mend, and functions that end a command with such an error in one line."""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

GOES_ON = "stopped; what is written stays, and the same command goes on from there"
"""The line after Ctrl-C for a command that writes file after file and keeps those that exist."""


STOPPED = 130
"""The exit code of a command that was stopped, as shells give it after Ctrl-C: 128 + SIGINT."""
LOG_LEVELS = ("debug", "info", "warning", "error")
_LIBRARIES = {
    "transformers": "TRANSFORMERS_VERBOSITY",
    "datasets": "DATASETS_VERBOSITY",
    "huggingface_hub": "HF_HUB_VERBOSITY",
}
"""Libraries -> the variable of their log level."""
OUTPUT_CLOSED = 141
"""The exit code of a command whose reader went before the end, as shells give it: 128 + SIGPIPE."""


class _Verbose(argparse.Action):
    """Notes that the user asked for the traceback of an error."""

    def __call__(self, *_: Any) -> None:
        show_tracebacks()


_tracebacks_are_shown = False


class CommandParser(argparse.ArgumentParser):
    """The parser of a command's flags, with --verbose; no flag may be abbreviated.

    So a word that is mistyped is not another one.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        what = "show the traceback of an error"
        self.add_argument("--verbose", action=_Verbose, nargs=0, help=what)


def show_tracebacks() -> None:
    """Let the command that runs show the traceback of an error before its line."""
    global _tracebacks_are_shown
    _tracebacks_are_shown = True


class InvalidInput(ValueError):
    """Wrong input of the user; one line says what is wrong, what was found and what is allowed."""


class NotDefined(InvalidInput):
    """A verifier is not defined for these draws or this tree; one line as in `InvalidInput`."""


class NoVerdict(InvalidInput):
    """A measurement cannot be trusted, so nothing is judged by it; a line as in `InvalidInput`."""


def printable(text: str) -> str:
    """A foreign text without what controls a terminal; tabs and ends of lines become blanks."""
    return "".join(mark if mark.isprintable() else " " * mark.isspace() for mark in text)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, `printable`, with the next if it ends with a colon.

    An empty message gives the name of the error's type.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    end = next(
        (number for number, line in enumerate(lines, start=1) if not line.endswith(":")), len(lines)
    )
    return printable(" ".join(lines[:end])) or type(error).__name__


def fail(message: str) -> int:
    """Say on stderr what is wrong; returns the exit code 1."""
    sys.stderr.write(f"error: {message}\n")
    return 1


def guard_imports(package: str) -> None:
    """Make Ctrl-C one line while a command of this package is imported; the package calls.

    A command is one of `python -m`, or `resispec` itself. Until `in_one_line` begins, Ctrl-C ends
    the process at once, since an import may swallow KeyboardInterrupt or make another error of it.
    Nothing is run without docstrings, as by `python -OO`: --help and transformers need them.
    """
    if not _is_command(package):
        return
    if sys.flags.optimize > 1:
        sys.exit(
            fail(
                "python -OO leaves out docstrings, which are needed; allowed: python and python -O"
            )
        )
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def set_log_levels() -> None:
    """Set the level of log messages that RESISPEC_LOG chooses, ours and those of libraries.

    Without the variable everything stays as it is: warnings are shown. A library's own variable,
    such as TRANSFORMERS_VERBOSITY, comes first. Raises InvalidInput for an unknown level.
    """
    level = os.environ.get("RESISPEC_LOG")
    if not level:
        return
    if level not in LOG_LEVELS:
        raise InvalidInput(f"RESISPEC_LOG is {level!r}; allowed: {', '.join(LOG_LEVELS)}")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger().setLevel(level.upper())
    for library, variable in _LIBRARIES.items():
        chosen = os.environ.setdefault(variable, level)  # read where the library is imported
        if library in sys.modules:
            logging.getLogger(library).setLevel(chosen.upper())


def _is_command(package: str) -> bool:
    """Whether this process was started as a command of a package, and no worker of one."""
    if not sys.argv:
        return False
    if sys.argv[0] == "-m":  # this word stands until the module is found
        return any(word.split(".")[0] == package.split(".")[0] for word in sys.orig_argv)
    return Path(sys.argv[0]).stem == "resispec" and sys.argv[0] in sys.orig_argv


def _stop(_number: int, _frame: FrameType | None) -> None:
    fail("stopped")
    os._exit(STOPPED)


def _open_missing_output() -> None:
    """Give a process that was started without stdout or stderr (`>&-`) one that goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _drop_unwritten() -> None:
    """Drop what stdout and stderr cannot take, since Python's retry would print a traceback."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _has_lost_reader() -> bool:
    """Whether the reader of stdout or stderr has gone, as after `| head -1`."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def in_one_line(
    stopped: str = "stopped",
) -> Callable[[Callable[..., int | None]], Callable[..., int]]:
    """A decorator of a command's function, which then returns an exit code: 0 instead of None.

    An error the user can mend gives one line and code 1; with --verbose its traceback stands above
    the line. RESISPEC_LOG chooses the level of log messages. Ctrl-C, which is no error of the
    command, gives one line and code STOPPED. If the reader of its output has gone, it ends without
    a word, with code OUTPUT_CLOSED.

    stopped: the message after Ctrl-C.
    """

    def decorated(work: Callable[..., int | None]) -> Callable[..., int]:
        @wraps(work)
        def command(*arguments: Any, **options: Any) -> int:
            global _tracebacks_are_shown
            _tracebacks_are_shown = False
            _open_missing_output()
            if signal.getsignal(signal.SIGINT) is _stop:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                set_log_levels()
                code = work(*arguments, **options) or 0
                sys.stdout.flush()
                return code
            except (InvalidInput, OSError) as error:
                if isinstance(error, BrokenPipeError) and _has_lost_reader():
                    return OUTPUT_CLOSED
                if _tracebacks_are_shown:
                    traceback.print_exc()
                return fail(first_line(error))
            except KeyboardInterrupt:
                fail(stopped)
                return STOPPED
            finally:
                _drop_unwritten()

        return command

    return decorated
