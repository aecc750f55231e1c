"""What every artefact's script does: read the plan and its cells, make the artefact, write and show it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matplotlib.figure import Figure

from analysis import categories, published, report
from analysis.figures import save_figure
from analysis.load import Plan, read_plan
from analysis.published import ACCEPTED_LENGTHS, Compared
from analysis.report import Table
from resispec.errors import InvalidInput, first_line

REPORT = "report.html"
"""The page of all artefacts in a results folder; it is published with all of them."""


@dataclass(frozen=True)
class Artefact:
    """What a script makes. The first table is shown and compared with the published one.

    suffixes: of the tables' files. compared: the numbers of the first table that are compared with the
    published ones.
    """

    tables: tuple[Table, ...]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    suffixes: tuple[str, ...] = ("csv", "md", "tex")
    compared: Compared = ACCEPTED_LENGTHS


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """What every command of this package takes: --profile and --results. module: its name."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    made.add_argument("--profile", default="embedded", help="a file of conf/profile (embedded)")
    made.add_argument("--results", type=Path, default=Path("results"), help="the folder of raw/ and PROFILE/")
    return made


def run(name: str, make: Callable[[Plan], Artefact], arguments: Sequence[str] | None = None) -> int:
    """Write `results/PROFILE/NAME.*` and show it; return the exit code, 1 with one line for invalid input.

    The last line says how far the numbers agree with the published ones.

    name: the artefact's. make: reads the cells of the plan and makes the artefact.
    arguments: the command line's, without the program; by default those of this process.
    """
    description = f"Writes {name} from the cells that exist, running nothing."
    chosen = parser(f"analysis.{name}", description).parse_args(arguments)
    try:
        plan = read_plan(name, chosen.profile, chosen.results)
        sys.stderr.write("".join(f"{name}: {line}\n" for line in plan.stale))
        made = complete(make, plan)
        agreement = published.compare(made.tables[0], plan.profile, made.compared)
        first = replace(made.tables[0], notes=(*made.tables[0].notes, *agreement.notes))
        paths = _write(replace(made, tables=(first, *made.tables[1:])), chosen.results / chosen.profile)
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"{name}: {first_line(error)}\n")
        return 1
    wrote = "".join(f"wrote {path}\n" for path in paths)
    sys.stdout.write(f"{report.markdown(first)}\n{wrote}{agreement.summary}\n")
    return 0


def complete(make: Callable[[Plan], Artefact], plan: Plan) -> Artefact:
    """What a script makes of a plan, and the table of categories where prompts have them."""
    made, table = make(plan), categories.of(plan)
    return made if table is None else replace(made, tables=(*made.tables, table))


def _write(made: Artefact, folder: Path) -> list[Path]:
    paths = [path for table in made.tables for path in report.write(table, folder, made.suffixes)]
    return paths + [path for stem, one in made.figures.items() for path in save_figure(one, folder / stem)]
