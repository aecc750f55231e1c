"""Sections of the page: artefacts' tables and figures, or why there are none, and a sweep's."""

import importlib
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from analysis import artefact, published, sweep, sweep_figure
from analysis.load import EXPERIMENTS, ROOT, Plan, find_sweep, plan_files, read_plan
from analysis.table import Table
from resispec.errors import InvalidInput, first_line

KINDS = ("table", "figure", "frontier")
"""Kinds of artefacts in the order of the page, by number within a kind; other kinds come last."""
DOCS = ROOT / "docs" / "artefacts"
"""Folder with a page per artefact."""


@dataclass(frozen=True)
class Section:
    """The section of one artefact, or of a sweep.

    name: the artefact's, or that of the sweep. title, lead: its title, and the first paragraph of
    its documentation as Markdown, or "". plan, made: None if there is none; then `problem` says
    why, unless the artefact was never measured. states: counts of the plan's cells that are "done",
    "failed", "interrupted" and "missing". agreement: a line on the agreement with the published
    numbers, or "".
    """

    name: str
    title: str
    lead: str = ""
    plan: Plan | None = None
    made: artefact.Artefact | None = None
    problem: str = ""
    states: Counter[str] = field(default_factory=Counter)
    agreement: str = ""

    @property
    def tables(self) -> tuple[Table, ...]:
        """Its tables that have rows."""
        return tuple(table for table in self.made.tables if table.rows) if self.made else ()

    @property
    def figures(self) -> dict[str, Figure]:
        """Its figures by the stems of their files."""
        drawings = self.made.figures if self.made else {}
        return {stem: drawing() for stem, drawing in drawings.items()}

    def words(self, stem: str) -> str:
        """The content of a figure in words, from its table; "" without such a table."""
        return next((table.notes.picture for table in self.tables if table.stem == stem), "")

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
    title, lead = about(name)
    if not plan_files(name, profile, results):
        return Section(name, title, lead)
    plan, states = None, Counter[str]()
    try:
        plan = read_plan(name, profile, results)
        states = _states(plan)
        made = artefact.complete(maker(name), plan)
        agreement = published.agreement(plan, made.tables[0], made.compared)
        line = agreement.summary if agreement.notes else ""
        return Section(name, title, lead, plan, made, "", states, line)
    except (InvalidInput, OSError) as error:
        return Section(name, title, lead, plan, None, first_line(error), states)


def read_sweep(name: str, profile: str, results: Path) -> Section:
    """The section of a sweep of one's own: a figure, and the table that its run ended with.

    The table has all rows, but not what tasks that do not decode report, which their rows alone do
    not say. name: the sweep's name, or its beginning. Raises InvalidInput when there is no such
    sweep, or a cell of it is damaged.
    """
    plan = find_sweep(name, profile, results)
    sweep_name = Path(plan.artefact).name
    table = sweep.table_of([plan], sweep_name)
    figure = sweep_figure.draw(table.frame)
    drawings = {sweep_name: lambda: figure} if figure else {}
    made = artefact.Artefact((table,), drawings)
    return Section(sweep_name, f"Sweep {sweep_name}", "", plan, made, "", _states(plan))


def _states(plan: Plan) -> Counter[str]:
    # Cells whose trees are not found yet share an id.
    cells = {(request.cell_id, repr(request.labels), request.is_audit) for request in plan.requests}
    return Counter(plan.status(cell_id).state for cell_id, *_ in cells)


def about(name: str, folder: Path = DOCS) -> tuple[str, str]:
    """The title of an artefact's documentation and its first paragraph, without links.

    Without documentation: the printed name and "".
    """
    path = folder / f"{name}.md"
    if not path.is_file():
        return titled(name), ""
    text = re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    title, lead, *_ = text.removeprefix("# ").split("\n\n")
    return title, re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", lead)


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
