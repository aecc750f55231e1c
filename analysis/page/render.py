"""The text of the page from its sections: one HTML file with its styles,
script and figures inside.
"""

import base64
import io
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from analysis import labels
from analysis.audits import ENUMERATED
from analysis.metrics import ACCEPTED_LENGTH, GAIN, SPEEDUP
from analysis.page import documentation, headline, overview
from analysis.page.sections import Section, titled
from analysis.table import Audit, Column, Gap, Key, Number, Paper, Table, TableCell, csv
from resispec.audit.verdict import LIMIT, Finding

MAX_OPEN_ROWS = 24
"""Tables of steps with more rows are folded."""
MAX_COLUMNS = 13
"""The number of columns, without the paper's, that fit on a screen of 1400 pixels."""
FIRST = tuple(metric.name for metric in (ACCEPTED_LENGTH, GAIN, SPEEDUP))
"""Quantities that are shown before others."""
VARIATION = ("total_variation", "total_variation_z")
"""Columns of the deviation of one node's law, and of this deviation in standard errors."""


def render(
    sections: Sequence[Section], profile: str, provenance: Mapping[str, str], folder: Path
) -> str:
    """The page as HTML.

    provenance: name -> fact. folder: that of the page and of the CSV files beside it.
    """
    environment = Environment(
        loader=PackageLoader("analysis.page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "markdown": documentation.inline,
        "titled": titled,
        "slug": lambda verdict: str(verdict).replace(" ", "-"),  # as the name of a CSS class
        "entry": entry,
        "folded": folded,
        "heights": heights,
        "number": labels.number,
        "between": headline.between,
        "methods": headline.methods,
    }
    names = [*(section.name for section in sections), "glossary"]
    frames = {section.name: section.made.tables[0].frame for section in sections if section.made}
    return environment.get_template("page.html.j2").render(
        profile=profile,
        headline=headline.values(frames),
        limit=LIMIT,
        overview=arranged(overview.table(frames)),
        sections=[_shown(section, names, folder) for section in sections],
        provenance=provenance,
        words=documentation.glossary(),
        max_open_rows=MAX_OPEN_ROWS,
    )


def _shown(section: Section, names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Values of the template for an artefact."""
    tables, figures = (section.made.tables, section.made.figures) if section.made else ((), {})
    verdicts = list(audits(tables[0])) if tables else []
    counts = Counter(row["verdict"] for row in verdicts)
    pictures = {table.stem: table.notes.picture for table in tables}
    return {
        "section": section,
        "about": documentation.about(section.name, names),
        "stale": section.plan.outdated if section.plan else (),
        "tables": [(arranged(table), _file(table, folder)) for table in tables if table.rows],
        "figures": [
            picture(stem, figure, pictures.get(stem) or f"Figure of {stem}")
            for stem, figure in figures.items()
        ],
        "audits": verdicts,
        "summary": ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())),
    }


def audits(table: Table) -> Iterator[dict[str, Any]]:
    """Verdicts on a table's rows, in their order; a table may have none.

    row: the row's name. verdict: a `Finding`, or the audit's state. audit: the table's cell. In its
    place, variation and z: the distance of one node's law from the target's, and the same in
    standard errors.
    """
    for row in table.rows:
        keys = [cell for cell in row if isinstance(cell, Key) and str(cell) != labels.ABSENT]
        name = ", ".join(f"T = {key}" if isinstance(key.value, float) else str(key) for key in keys)
        cells = {column.key: cell for column, cell in zip(table.columns, row, strict=True)}
        for column, cell in zip(table.columns, row, strict=True):
            if isinstance(cell, Audit) and cell.verdict:
                title = f"{name}: {column.header}" if column.of else name
                yield {"row": title, "verdict": cell.verdict, "audit": cell}
        variation, z = map(cells.get, VARIATION)
        if isinstance(variation, Number) and isinstance(z, Number) and not math.isnan(z.value):
            verdict = Finding.BIASED if z.value > LIMIT else Finding.NO_BIAS_SEEN
            yield {"row": name, "verdict": verdict, "variation": variation, "z": z.value}


def _file(table: Table, folder: Path) -> tuple[str, bool] | None:
    """The table's CSV beside the page: its name, and whether its numbers are the page's;
    None without one.
    """
    path = folder / f"{table.stem}.csv"
    if not path.is_file():
        return None
    return path.name, path.read_text(encoding="utf-8") == csv(table)


@dataclass(frozen=True)
class Entry:
    """A cell as the page shows it. beside: an interval, or the numbers behind a verdict.

    kind: a `Finding`, "gap" for a cell not measured, "absent" for no value, or "". value: text to
    sort by.
    """

    text: str
    beside: str = ""
    kind: str = ""
    value: str = ""


def arranged(table: Table) -> Table:
    """A table as it is shown: columns that name a row,
    audits and FIRST come before all other columns.
    """

    def place(column: Column) -> int:
        ranks = {"key": -2, "audit": -1}
        return ranks.get(
            column.kind, FIRST.index(column.key) if column.key in FIRST else len(FIRST)
        )

    order = sorted(range(len(table.columns)), key=lambda index: place(table.columns[index]))
    columns, *rows = (
        tuple(line[place] for place in order) for line in (table.columns, *table.rows)
    )
    return replace(table, columns=columns, rows=tuple(rows))


def folded(table: Table) -> tuple[str, set[int]]:
    """Parts of a table that fold out: in words, "" for none;
    and the places of the columns among them.

    Such columns are the paper's figures, and the last quantities if there are more than MAX_COLUMNS
    others.
    """
    places = [place for place, column in enumerate(table.columns) if column.kind != "paper"]
    if len(places) > MAX_COLUMNS:
        last = table.columns[places[MAX_COLUMNS]].key
        places = list(itertools.takewhile(lambda place: table.columns[place].key != last, places))
    columns = set(range(len(table.columns))) - set(places)
    cells = list(itertools.chain(*table.rows))
    parts = {
        "intervals": any(isinstance(cell, Number) and not math.isnan(cell.low) for cell in cells),
        "scores of audits": any(isinstance(cell, Audit) and cell.z for cell in cells),
        "the paper's figures": any(column.kind == "paper" for column in table.columns),
        "more columns": any(table.columns[place].kind != "paper" for place in columns),
    }
    *names, last = [name for name, is_there in parts.items() if is_there] or [""]
    return " and ".join([", ".join(names), last] if names else [last]), columns


def heights(table: Table) -> list[list[float]]:
    """Heights of bars: the numbers of each row divided by the largest number of all rows."""
    numbers = [[cell.value for cell in row if isinstance(cell, Number)] for row in table.rows]
    measured = [[value for value in row if not math.isnan(value)] for row in numbers]
    largest = max(itertools.chain(*measured), default=1.0) or 1.0
    return [[value / largest for value in row] for row in measured]


def entry(cell: TableCell) -> Entry:
    """A typed cell as the page shows it."""
    if isinstance(cell, Gap):
        return Entry(str(cell), kind="gap")
    if str(cell) == labels.ABSENT:
        return Entry(str(cell), kind="absent")
    if isinstance(cell, Audit):
        finding = Finding.BIASED if cell.verdict == ENUMERATED else cell.verdict
        kind = finding if finding in list(Finding) else ""
        return Entry(cell.verdict, str(cell).removeprefix(cell.verdict), kind)
    if isinstance(cell, Number):
        value = labels.number(cell.value, cell.spec)
        return Entry(value, str(cell).removeprefix(value), value=repr(float(cell.value)))
    if isinstance(cell, Paper):
        return Entry(str(cell), value=repr(float(cell.low)))
    if isinstance(cell, Key) and isinstance(cell.value, int | float):
        return Entry(str(cell), value=repr(float(cell.value)))
    return Entry(str(cell))


def picture(stem: str, figure: Figure, alt: str) -> dict[str, Any]:
    """Attributes of a figure's image.

    alt: its content in words; titles, panels, axes and lines are added.
    """
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": stem, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    payload = base64.b64encode(buffer.getvalue()).decode("ascii")
    panels = [axes for axes in figure.axes if axes.get_title() or axes.lines]
    names = [
        handle.get_label() for axes in panels for handle in axes.get_legend_handles_labels()[0]
    ]
    names += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    descriptions = {
        "Panels": [axes.get_title() for axes in panels],
        "Across": [figure.get_supxlabel(), *(axes.get_xlabel() for axes in panels)],
        "Up": [figure.get_supylabel(), *(axes.get_ylabel() for axes in panels)],
        "Shown": names + [note.get_text() for axes in panels for note in axes.texts],
    }
    sentences = [
        alt,
        figure.get_suptitle(),
        *(legend.get_title().get_text() for legend in figure.legends),
    ]
    for name, words in descriptions.items():
        distinct = dict.fromkeys(" ".join(str(word).split()) for word in words if word)
        sentences += [f"{name}: {'; '.join(distinct)}"] if distinct else []
    alt = ". ".join(sentence.rstrip(".") for sentence in sentences if sentence)
    source, width = f"data:image/svg+xml;base64,{payload}", round(figure.get_size_inches()[0] * 96)
    return {"source": source, "alt": f"{alt}.", "width": width}
