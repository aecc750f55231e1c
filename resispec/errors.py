"""Errors that the user can mend, and functions that end a command with such an error in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

GOES_ON = "stopped; what is written stays, and the same command goes on from there"
"""The line after Ctrl-C for a command that writes file after file and keeps the files that exist."""


class InvalidInput(ValueError):
    """Something the user gave is wrong; one line says what is wrong, what was found and what is allowed."""


class NotDefined(InvalidInput):
    """A verifier is not defined for these draws or this tree; one line as in `InvalidInput`."""


class NoVerdict(InvalidInput):
    """A measurement cannot be trusted, so nothing is judged by it; one line as in `InvalidInput`."""


def printable(text: str) -> str:
    """A foreign text without characters that control a terminal; a tab or a line's end becomes a blank."""
    return "".join(mark if mark.isprintable() else " " * mark.isspace() for mark in text)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, `printable`; a line that ends with a colon is joined to the next.

    An empty message gives the name of the error's type.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    end = next((number for number, line in enumerate(lines, start=1) if not line.endswith(":")), len(lines))
    return printable(" ".join(lines[:end])) or type(error).__name__


def fail(message: str) -> int:
    """Say on stderr what is wrong; returns the exit code 1."""
    sys.stderr.write(f"error: {message}\n")
    return 1


def in_one_line(stopped: str = "stopped") -> Callable[[Callable[..., int | None]], Callable[..., int]]:
    """A decorator of a command's function, which then returns an exit code: 0 if the function returns none.

    An error the user can mend gives one line and code 1, and so does Ctrl-C, which is no error of the
    command. stopped: the message after Ctrl-C.
    """

    def decorated(work: Callable[..., int | None]) -> Callable[..., int]:
        @wraps(work)
        def command(*arguments: Any, **options: Any) -> int:
            try:
                return work(*arguments, **options) or 0
            except (InvalidInput, OSError) as error:
                return fail(first_line(error))
            except KeyboardInterrupt:
                return fail(stopped)

        return command

    return decorated
