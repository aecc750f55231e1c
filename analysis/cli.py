"""The command line of what reads or writes a profile's results: --profile and --results."""

from __future__ import annotations

import argparse
from pathlib import Path

from resispec.errors import InvalidInput

PROFILES = Path(__file__).resolve().parent.parent / "conf" / "profile"


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
