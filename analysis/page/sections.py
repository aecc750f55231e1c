"""Sections of the page: the tables and figures of each artefact's script,
or a line on why there are none.
"""

import importlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from analysis import artefact, published
from analysis.load import EXPERIMENTS, Plan, plan_files, read_plan
from analysis.page import steps
from analysis.table import Table
from resispec.errors import InvalidInput, first_line

KINDS = ("table", "figure", "frontier")
"""Kinds of artefacts in the order of the page, by number within a kind; other kinds come last."""


@dataclass(frozen=True)
class Section:
    """The section of one artefact.

    plan, made: None if there is none; then `problem` says why, unless the artefact was never
    measured. states: counts of the plan's cells that are "done", "failed", "interrupted" and
    "missing". steps: tables of its cells that decode. agreement: a line on the agreement with the
    published numbers, or "".
    """

    name: str
    plan: Plan | None = None
    made: artefact.Artefact | None = None
    problem: str = ""
    states: Counter[str] = field(default_factory=Counter)
    steps: tuple[Table, ...] = ()
    agreement: str = ""

    @property
    def status(self) -> str:
        """The measured share of the artefact: "18 of 18 cells measured", "not measured"."""
        if not self.states:
            return "cannot be read" if self.problem else "not measured"
        gaps = [
            f"{count} {state}" for state, count in sorted(self.states.items()) if state != "done"
        ]
        return ", ".join([f"{self.states['done']} of {self.states.total()} cells measured", *gaps])


def titled(name: str) -> str:
    """The printed name of an artefact: "table1" is "Table 1", "my_sweep" is "My sweep"."""
    kind, number = _split(name)
    return f"{kind.replace('_', ' ').strip()} {number}".strip().capitalize()


def _split(name: str) -> tuple[str, str]:
    kind = name.rstrip("0123456789")
    return kind, name.removeprefix(kind)


def artefacts(folder: Path = EXPERIMENTS) -> list[str]:
    """The names of all artefacts, in the order of the page."""

    def place(name: str) -> tuple[int, int, str]:
        kind, number = _split(name)
        return KINDS.index(kind) if kind in KINDS else len(KINDS), int(number or 0), name

    return sorted((path.stem for path in folder.glob("*.yaml")), key=place)


def read(name: str, profile: str, results: Path) -> Section:
    """The section of an artefact; a placeholder if the artefact was not measured.

    results: the folder of raw/ and PROFILE/.
    """
    if not plan_files(name, profile, results):
        return Section(name)
    plan, states = None, Counter[str]()
    try:
        plan = read_plan(name, profile, results)
        # Cells whose trees are not found yet share an id.
        cells = {
            (request.cell_id, repr(request.labels), request.is_audit) for request in plan.requests
        }
        states.update(plan.status(cell_id).state for cell_id, *_ in cells)
        made = artefact.complete(maker(name), plan)
        agreement = published.agreement(plan, made.tables[0], made.compared)
        line = agreement.summary if agreement.notes else ""
        return Section(name, plan, made, "", states, steps.of(plan), line)
    except (InvalidInput, OSError) as error:
        return Section(name, plan, None, first_line(error), states)


def maker(name: str) -> artefact.Maker:
    """The `make` of an artefact's script, `analysis.NAME`.

    Raises InvalidInput when there is none.
    """
    try:
        return importlib.import_module(f"analysis.{name}").make
    except (ModuleNotFoundError, AttributeError) as error:
        raise InvalidInput(
            f"analysis/{name} is no script with a make(plan) ({first_line(error)})"
        ) from error
