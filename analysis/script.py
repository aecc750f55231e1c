"""What every artefact's script does: list its cells, load them, build its table, write it and show it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.load import load
from analysis.report import Table, markdown, write
from experiments.cells import expected_cells
from resispec.errors import InvalidInput

# (loaded cells, profile, command that makes the artefact from nothing) -> the artefact
Build = Callable[[Any, str, str], Any]


def publish_table(table: Table, folder: Path) -> tuple[str, list[Path]]:
    """Write a table's files; return its text and their paths."""
    return markdown(table), write(table, folder)


def run(
    artefact: str,
    build: Build,
    arguments: Sequence[str] | None = None,
    read: Callable[[Any], Any] = load,
    publish: Callable[[Any, Path], tuple[str, list[Path]]] = publish_table,
) -> int:
    """Make `<results>/<profile>/<artefact>.*`; return the exit status: 1, with one line, for invalid input.

    Args:
        artefact: the stem of the artefact; conf/experiment/<artefact>.yaml names its cells.
        build: makes the table of the loaded cells.
        arguments: the command line's, without the program; by default those of this process.
        read: loads the cells; by default those that decode.
        publish: writes what was built into a folder; returns its text and the paths.
    """
    description = f"Writes {artefact} from the cells that exist."
    parser = argparse.ArgumentParser(prog=f"python -m analysis.{artefact}", description=description)
    parser.add_argument("--profile", default="embedded", help="embedded (the default) or paper")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="the folder of raw/ and <profile>/"
    )
    parser.add_argument("overrides", nargs="*", help="what the sweep was run with, such as num_prompts=8")
    chosen = parser.parse_args(arguments)
    try:
        cells = expected_cells(artefact, chosen.profile, [f"results='{chosen.results}'", *chosen.overrides])
        made = build(read(cells), chosen.profile, command(artefact, chosen.profile, chosen.overrides))
        text, paths = publish(made, chosen.results / chosen.profile)
    except InvalidInput as error:
        sys.stderr.write(f"{artefact}: {error}\n")
        return 1
    sys.stdout.write(text + "\n" + "".join(f"wrote {path}\n" for path in paths))
    return 0


def command(artefact: str, profile: str, overrides: Sequence[str]) -> str:
    """What to type to run the cells and make the table."""
    if not overrides:
        return f"make reproduce-{artefact} PROFILE={profile}"
    changes = shlex.join(overrides)
    sweep = f"python -m experiments.run experiment={artefact} profile={profile} {changes}"
    return f"{sweep} && python -m analysis.{artefact} --profile {profile} {changes}"
