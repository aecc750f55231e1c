"""What commands about a profile take, and how a command ends when something goes wrong: in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from resispec.errors import InvalidInput, first_line

PROFILES = Path(__file__).resolve().parent.parent / "conf" / "profile"
GOES_ON = "stopped; what is written stays, and the same command goes on from there"
"""What Ctrl-C makes a command say that writes file after file, and keeps those that are there."""


def profile_parser(module: str, description: str) -> argparse.ArgumentParser:
    """A parser of --profile and --results. module: the command's name."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--profile", default="embedded", help="a file of conf/profile (embedded)")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="the folder of raw/ and PROFILE/"
    )
    return parser


def check_profile(name: str) -> None:
    """Raise InvalidInput for a profile that does not exist."""
    profiles = sorted(path.stem for path in PROFILES.glob("*.yaml"))
    if name not in profiles:
        raise InvalidInput(f"unknown profile {name!r}; allowed: {', '.join(profiles)}")


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
