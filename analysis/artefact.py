"""An artefact and its command: read a plan and cells, make, write and show tables and figures."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pandas as pd
import yaml

from analysis import categories, labels, published, table
from analysis.cli import profile_parser
from analysis.load import (
    ROOT,
    Plan,
    Results,
    commit_of,
    facts_of,
    listed,
    origins,
    read_plan,
    read_sweep,
)
from analysis.published import ACCEPTED_LENGTHS, Compared
from analysis.stats import few_prompts
from analysis.table import Note, Notes, Table
from analysis.terminal import printed
from resispec.errors import InvalidInput, in_one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Drawing: TypeAlias = "Callable[..., Figure]"
"""Draws a figure; it takes width=INCHES, and a narrow figure has fewer panels beside each other."""


@dataclass(frozen=True)
class Artefact:
    """Tables and figures of an artefact.

    The first table is printed and compared with the published one.

    figures: file name without suffix -> its drawing. suffixes: those of the tables' files.
    compared: the numbers of the first table to compare with the published ones.
    """

    tables: tuple[Table, ...]
    figures: Mapping[str, Drawing] = field(default_factory=dict)
    suffixes: tuple[str, ...] = ("csv", "md", "tex")
    compared: Compared = ACCEPTED_LENGTHS


FORMATS = ("png", "svg", "pdf")
"""The formats of figures."""
WIDTHS = (3.0, 20.0)
"""The smallest and the largest width of a figure, in inches."""
Maker: TypeAlias = Callable[[Plan], Artefact]


def texts(name: str) -> dict[str, Any]:
    """The prose of an artefact, its caption and its notes, from analysis/texts/NAME.yaml."""
    return yaml.safe_load(
        (ROOT / "analysis" / "texts" / f"{name}.yaml").read_text(encoding="utf-8")
    )


@in_one_line()
def run(name: str, make: Maker, arguments: Sequence[str] | None = None) -> None:
    """Write `results/PROFILE/NAME.*` and print the first table.

    Without a plan in the usual folder, the artefact is made from the published cells. That of a
    sweep of one's own is written to `results/PROFILE/sweeps/SWEEP/`, and each of its captions
    begins by saying so. The last printed line says how far the numbers agree with the published
    ones. Invalid input is reported in one line on stderr, and the exit code is then 1.

    name: the artefact's name. make: reads the cells of a plan and makes the artefact. arguments:
    those of the command line, by default the process's own.
    """
    description = f"Writes {name} from the cells that exist, or else from ours that are published."
    parser = profile_parser(f"analysis.{name}", description)
    help_text = "of a sweep of one's own instead, by its name or the beginning of it"
    parser.add_argument("--plan", metavar="SWEEP", help=help_text)
    help_text = "the folder to write to, by default that of the profile or the sweep in --results"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=help_text)
    help_text = "of figures: some of png, svg and pdf (png,pdf)"
    parser.add_argument("--format", default="png,pdf", help=help_text)
    help_text = "of figures; their text has 8 to 9 pt at any width"
    parser.add_argument("--width", metavar="INCHES", help=help_text)
    options = parser.parse_args(arguments)
    formats, width = _formats(options.format), _inches(options.width)
    folder, opening = options.results / options.profile, ""
    if options.plan is None:
        source = published.source(name, options.profile, options.results)
        plan = read_plan(name, options.profile, source)
    else:
        plan = read_sweep(options.plan, name, options.profile, options.results)
        sweep = Path(plan.artefact).name
        folder = folder / "sweeps" / sweep
        opening = f"Sweep {sweep}, not all of {name}: "
    folder = options.out or folder
    sys.stderr.write("".join(f"{name}: {line}\n" for line in plan.outdated))
    artefact = complete(make, plan)
    agreement = published.agreement(plan, artefact.tables[0], artefact.compared)
    tables = [
        replace(one_table, caption=opening + one_table.caption) for one_table in artefact.tables
    ]
    # what this run draws, not the picture of an earlier one
    picture = next((name for name in ("png", "svg") if name in formats), "")
    paths = [
        path
        for one_table in tables
        for path in table.write(one_table, folder, artefact.suffixes, picture)
    ]
    if artefact.figures:  # a table takes no matplotlib
        from analysis.figures import fit, save_figure

        for stem, drawing in artefact.figures.items():
            figure = fit(drawing(width=width)) if width else drawing()
            paths += save_figure(figure, folder / stem, formats)
    notes = "".join(f"{note}\n\n" for note in agreement.notes)
    listing = "".join(f"wrote {path}\n" for path in paths)
    text = printed(tables[0], str(folder / f"{tables[0].stem}.md"))
    sys.stdout.write(f"{text}\n{notes}{listing}{agreement.summary}\n")


def _formats(text: str) -> list[str]:
    """The formats of figures. Raises InvalidInput for an unknown one."""
    formats = text.split(",")
    if unknown := [name for name in formats if name not in FORMATS]:
        raise InvalidInput(f"--format has {unknown[0]!r}; allowed: {', '.join(FORMATS)}")
    return formats


def _inches(text: str | None) -> float | None:
    """A width in inches, if one is given. Raises InvalidInput for one that no figure can have."""
    if text is None:
        return None
    try:
        width = float(text)
    except ValueError:
        width = math.nan
    if not WIDTHS[0] <= width <= WIDTHS[1]:
        least, most = WIDTHS
        raise InvalidInput(f"--width is {text}; allowed: {least:g} to {most:g} inches")
    return width


def main(arguments: Sequence[str]) -> int:
    """The command of an artefact by its name, the first of the words; see `run`."""
    name, *words = arguments
    return run(name, import_module(f"analysis.{name}").make, words)


def complete(make: Maker, plan: Plan) -> Artefact:
    """The artefact of a plan, with a table by category of prompts if the prompts have categories.

    "{profile}" in a caption becomes the name of the plan's profile.
    """
    artefact = make(plan)
    tables = (
        replace(
            one_table,
            caption=one_table.caption.replace("{profile}", plan.profile),
            notes=_with_biases(one_table, plan),
            facts=facts_of([plan]),
        )
        for one_table in (*artefact.tables, categories.of(plan, artefact.tables[0].stem))
        if one_table
    )
    return replace(artefact, tables=tuple(tables))


def _with_biases(one_table: Table, plan: Plan) -> Notes:
    """The notes of a table; without verdicts in it, they name what enumeration shows to be biased.

    A table without verifiers needs none.
    """
    has_verdicts = any(one.key == "verdict" for one in one_table.columns)
    if has_verdicts or "verifier" not in one_table.frame:
        return one_table.notes
    methods = dict.fromkeys(
        labels.method(cell.labels["decoder"], cell.labels["verifier"])
        for cell in plan.requests
        if plan.provenance(cell.cell_id).get("shown_bias")
    )
    if not methods:
        return one_table.notes
    note = f"Biased, as enumeration shows: {'; '.join(methods)}."
    return replace(one_table.notes, about=(*one_table.notes.about, note))


def paper(stem: str) -> pd.DataFrame:
    """The numbers of a table of the paper, results/reference/STEM.csv."""
    return pd.read_csv(ROOT / "results" / "reference" / f"{stem}.csv")


def beside(
    figures: pd.DataFrame, wanted: Mapping[str, Any], preferred: Mapping[str, Any] = {}
) -> pd.DataFrame:
    """Rows of the paper with the wanted values; those with the preferred ones, if there are any."""
    rows = figures[(figures[list(wanted)] == pd.Series(wanted)).all(axis=1)]
    matches = rows[(rows[list(preferred)] == pd.Series(preferred)).all(axis=1)]
    return rows if matches.empty else matches


def footer(
    results: Results,
    plan: Plan,
    about: Sequence[Note],
    definitions: Sequence[Note] = (),
    picture: str = "",
) -> Notes:
    """The notes of an artefact's table: its own, the origin of its numbers, and what is missing.

    results: cells behind the table's rows. plan: all cells of the artefact, its ceilings included.
    """
    done_cells = results.cells[results.cells.status == "done"]
    measured = {
        (request.cell_id, repr(request.labels)) for request in plan.requests if not request.is_audit
    }
    count = sum(plan.status(cell_id).state != "done" for cell_id, _ in measured)
    gaps = (
        f"Incomplete: {count} of {len(measured)} cells are missing, failed or interrupted."
        if count
        else ""
    )
    prompts = sorted(
        {len(results.rows[cell_id]) for cell_id in done_cells.cell_id[~done_cells.is_audit]}
    )
    runs = [run for cell_id in done_cells.cell_id for run in origins(plan.provenance(cell_id))]
    facts = {
        "Device": [run.get("device") for run in runs],
        "Prompts per cell": prompts,
        "Commit": [commit_of(run, 10) for run in runs],
    }
    meanings = (*definitions, *few_prompts(prompts))
    return Notes(tuple(about), picture, origin(plan, facts), meanings, gaps, plan.outdated)


def origin(plan: Plan, facts: Mapping[str, Iterable[object]]) -> str:
    """One line about the origin of a table's numbers. facts: printed name -> values."""
    sentences = [f"{name}: {listed(values) or 'none'}." for name, values in facts.items()]
    return " ".join([f"Profile: {plan.profile}.", *sentences, f"Made by: {plan.command}."])
