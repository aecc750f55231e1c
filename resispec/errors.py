"""Errors that the user can mend, and how a command ends with one: in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable

GOES_ON = "stopped; what is written stays, and the same command goes on from there"
"""Ctrl-C's line of a command that writes file after file, and keeps those that are there."""


class InvalidInput(ValueError):
    """Something the user gave is wrong; one line says what is wrong, what was found and what is allowed."""


class NotDefined(InvalidInput):
    """A verifier is not defined for these draws or this tree; one line as above."""


class NoVerdict(InvalidInput):
    """A measurement cannot be trusted, so nothing is judged by it; one line as above."""


def printable(text: str) -> str:
    """A text of somebody else's without what a terminal would obey; a tab or a line's end is a blank."""
    return "".join(mark if mark.isprintable() else " " * mark.isspace() for mark in text)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, `printable`; one that ends with a colon brings the next along.

    The type's name stands for an empty message.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    end = next((number for number, line in enumerate(lines, start=1) if not line.endswith(":")), len(lines))
    return printable(" ".join(lines[:end])) or type(error).__name__


def fail(message: str) -> int:
    """Say on stderr what is wrong; returns the exit code 1."""
    sys.stderr.write(f"error: {message}\n")
    return 1


def in_one_line(work: Callable[[], int], stopped: str) -> int:
    """Do a command's work and return its exit code; what the user can mend is one line and exit code 1.

    stopped: what is said when Ctrl-C stops it, which is no error of the command's.
    """
    try:
        return work()
    except (InvalidInput, OSError) as error:
        return fail(first_line(error))
    except KeyboardInterrupt:
        return fail(stopped)
