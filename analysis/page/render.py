"""From sections to the text of the page: one HTML file with its styles, script and figures inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis.page import claim, overview, provenance, text, view, words
from analysis.page.sections import Section, titled
from analysis.report import Table

TEMPLATES = Path(__file__).resolve().parent / "templates"
MAX_OPEN_ROWS = 24
"""Longer tables of steps are folded."""


def render(sections: Sequence[Section], profile: str, results: Path) -> str:
    """The page. results: the folder of raw/ and PROFILE/, where the page's CSV files are beside it."""
    names = [section.name for section in sections]
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            profile=profile,
            verdict=claim.judge(sections),
            overview=view.grid(overview.table(sections)),
            sections=[_shown(section, names, results / profile) for section in sections],
            provenance=provenance.facts(
                [section.plan for section in sections if section.plan], results / "raw" / profile
            ),
            commands=[(section.title, section.plan.command) for section in sections if section.plan],
            max_open_rows=MAX_OPEN_ROWS,
        )
    )


def environment() -> Environment:
    """What templates are rendered with."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"markdown": text.inline, "titled": titled}
    return found


def _shown(section: Section, names: Sequence[str], folder: Path) -> dict[str, Any]:
    """What the template is told of an artefact."""
    tables = section.made.tables if section.made else ()
    stale = section.plan.stale if section.plan else ()
    audits = words.said(tables[0].frame) if tables else []
    notes = [note for table in tables for note in table.notes]
    figures = section.made.figures if section.made else {}
    return {
        "section": section,
        "about": text.about(section.name, names),
        "status": status(section),
        "stale": stale,
        "tables": [(view.grid(table, but=stale), _file(table, folder)) for table in tables],
        "figures": [view.picture(stem, figure, notes) for stem, figure in figures.items()],
        "audits": audits,
        "summary": words.summary(audits),
        "steps": section.steps
        and (view.grid(section.steps.shares, True), view.grid(section.steps.positions, True)),
    }


def status(section: Section) -> str:
    """How much of an artefact is measured: "18 of 18 cells measured", "not measured"."""
    total = section.states.total()
    if not total:
        return "cannot be read" if section.problem else "not measured"
    absent = [f"{count} {state}" for state, count in sorted(section.states.items()) if state != "done"]
    return ", ".join([f"{section.states['done']} of {total} cells measured", *absent])


def _file(table: Table, folder: Path) -> tuple[str, bool] | None:
    """The table's CSV beside the page: its name, and whether its numbers are the page's; None without one."""
    path = folder / f"{table.stem}.csv"
    if not path.is_file():
        return None
    return path.name, path.read_text(encoding="utf-8") == table.frame.to_csv(index=False)
