"""Options of commands that read or write a profile's results: --profile, its default, --results.

python -m analysis.cli      # prints the default profile and the reason for it; make calls this, too
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from resispec.commands import as_typed
from resispec.errors import CommandParser, InvalidInput
from resispec.machine import has_cuda

PROFILES = Path(__file__).resolve().parent.parent / "conf" / "profile"
TARGET = "models--meta-llama--Llama-2-7b-hf"
"""Folder of the paper's target in the hub's cache."""
DIALECTS = (
    "Commands whose options are keys of conf/ take them as Hydra does, KEY=VALUE, with groups, "
    "sweeps and completion; commands with a few options of their own take --flags."
)
"""The sentence of every --help about the two kinds of options."""


def profile_parser(module: str, description: str) -> argparse.ArgumentParser:
    """A parser with --profile and --results. module: the module that the command runs."""
    parser = CommandParser(prog=as_typed(module), description=description, epilog=DIALECTS)
    help_text = (
        "a file of conf/profile; by default PROFILE of the environment, or what fits the machine"
    )
    parser.add_argument("--profile", type=chosen_profile, default="", help=help_text)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="the folder of raw/ and PROFILE/"
    )
    return parser


def chosen_profile(name: str = "") -> str:
    """The profile of the command line, else PROFILE of the environment, else the machine's default.

    A line on stderr says when the machine's default is taken.
    """
    if profile := name or os.environ.get("PROFILE"):
        return profile
    default, reason = default_profile()
    sys.stderr.write(f"profile: {default} ({reason})\n")
    return default


@cache
def default_profile() -> tuple[str, str]:
    """The profile that fits the machine, and the reason in words.

    The choice depends on a CUDA device that torch can use, and on a hub or a copy of the paper's
    target.
    """
    if not has_cuda():
        return (
            "embedded",
            "torch finds no CUDA device; the profile paper has the models of the paper",
        )
    if _has_models():
        choices = (
            "inflated has a pair that costs the same and needs no hub, embedded the small pair"
        )
        return "paper", f"torch finds a CUDA device; the profile {choices}"
    choices = "paper has the models of the paper, embedded the small pair"
    return "inflated", f"torch finds a CUDA device, but there is no hub; the profile {choices}"


def _has_models() -> bool:
    """Whether there is a copy of the paper's target, or a hub that answers within a second."""
    from huggingface_hub import constants

    has_copy = (Path(constants.HF_HUB_CACHE) / TARGET).is_dir()
    if has_copy or constants.HF_HUB_OFFLINE:
        return has_copy
    command = ["curl", "-sfIm", "1", "-o", os.devnull, constants.ENDPOINT]  # -m limits DNS, too
    try:
        return subprocess.run(command, check=False).returncode == 0
    except OSError:
        return False


def check_results(folder: Path) -> None:
    """Raise InvalidInput for a folder of results that is not there or cannot be read."""
    hint = "give that of raw/ and PROFILE/: --results FOLDER"
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is no folder; {hint}")
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise InvalidInput(
            f"{folder} cannot be read ({error.strerror}), so nothing was; {hint}"
        ) from error


def check_profile(name: str, results: Path | None = None) -> None:
    """Raise InvalidInput for a profile that does not exist.

    results: a folder whose plans may be of further ones, those of a folder of the user's.
    """
    profiles = sorted(path.stem for path in PROFILES.glob("*.yaml"))
    is_planned = results is not None and (results / name / "plans").is_dir()
    if name not in profiles and not is_planned:
        raise InvalidInput(f"unknown profile {name!r}; allowed: {', '.join(profiles)}")


if __name__ == "__main__":
    sys.stdout.write("{} ({})\n".format(*default_profile()))
