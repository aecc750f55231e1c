"""How a command ends when something goes wrong: one line for people, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from resispec.errors import InvalidInput, first_line

GOES_ON = "stopped; what is written stays, and the same command goes on from there"
"""What Ctrl-C makes a command say that writes file after file, and keeps those that are there."""


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
