"""The text of the page from its sections: one HTML file with its styles, script and figures."""

import base64
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.figure import Figure

from analysis import labels
from analysis.artefact import paper
from analysis.audits import is_biased
from analysis.metrics import ACCEPTED_LENGTH, GAIN, SPEEDUP
from analysis.page import headline
from analysis.page.sections import Section, titled
from analysis.table import Audit, Column, Gap, Key, Number, Paper, Table, TableCell
from resispec.audit.verdict import Finding

MAX_OPEN_ROWS = 24
"""Tables with more rows scroll in a box."""
FIRST = ("audit", *(metric.name for metric in (ACCEPTED_LENGTH, GAIN, SPEEDUP)))
"""Columns that are shown before others: verdicts, then these quantities."""
PARSER = MarkdownIt("commonmark", {"html": False})


@dataclass(frozen=True)
class Entry:
    """A cell as the page shows it. beside: an interval, or the numbers behind a verdict.

    kind: a `Finding`, "gap" for a cell not measured, or "". value: text to sort by.
    """

    text: str
    beside: str = ""
    kind: str = ""
    value: str = ""


def render(
    sections: Sequence[Section],
    title: str,
    command: str,
    provenance: Mapping[str, str],
    is_report: bool = True,
) -> str:
    """The page as HTML.

    command: makes the page. provenance: name -> fact. is_report: whether the sections are artefacts
    of the paper, and the page says what they mean for the paper's claim.
    """
    environment = Environment(
        loader=PackageLoader("analysis.page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "markdown": inline,
        "titled": titled,
        "slug": lambda verdict: str(verdict).replace(" ", "-"),  # as the name of a CSS class
        "entry": entry,
        "arranged": arranged,
        "has_more": has_more,
        "verdicts": verdicts,
        "picture": picture,
    }
    frames = {one.name: one.made.tables[0].frame for one in sections if one.made}
    rows = headline.joined(frames)
    return environment.get_template("page.html.j2").render(
        title=title,
        is_report=is_report,
        command=command,
        sections=sections,
        claimed=paper("table1"),
        headline=headline.sentence(rows),
        facts=headline.facts(rows),
        provenance=provenance,
        max_open_rows=MAX_OPEN_ROWS,
    )


def inline(text: str) -> Markup:
    """A line of Markdown as HTML, which is safe: the parser escapes all text."""
    return Markup(PARSER.renderInline(text))


def verdicts(table: Table) -> str:
    """The verdicts of a table with their counts: "6 biased, 6 no bias seen"; "" without any."""
    cells = (cell for row in table.rows for cell in row if isinstance(cell, Audit))
    counts = Counter(cell.verdict for cell in cells if cell.verdict)
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))


def arranged(table: Table) -> Table:
    """A table as it is shown: after the columns that name a row, audits and FIRST come first.

    The header "(paper)" also names the quantity, that of the column before it.
    """

    def place(column: Column) -> int:
        if column.kind == "key":
            return -1
        name = "audit" if column.kind == "audit" else column.key
        return FIRST.index(name) if name in FIRST else len(FIRST)

    order = sorted(range(len(table.columns)), key=lambda index: place(table.columns[index]))
    columns: list[Column] = []
    for column in (table.columns[index] for index in order):
        header = column.header
        if header == "(paper)":
            header = f"{columns[-1].header} (paper)"
        columns.append(replace(column, header=header))
    rows = tuple(tuple(row[index] for index in order) for row in table.rows)
    return replace(table, columns=tuple(columns), rows=rows)


def has_more(table: Table) -> bool:
    """Whether a table has anything that is shown on demand: intervals, scores, the paper's."""
    entries = (entry(cell) for row in table.rows for cell in row)
    return any(column.kind == "paper" for column in table.columns) or any(
        one.beside for one in entries
    )


def entry(cell: TableCell) -> Entry:
    """A typed cell as the page shows it."""
    if isinstance(cell, Gap):
        return Entry(str(cell), kind="gap")
    if isinstance(cell, Audit):
        return Entry(cell.verdict or labels.ABSENT, _rest(cell, cell.verdict), _kind(cell.verdict))
    if isinstance(cell, Number) and not math.isnan(cell.value):
        text = labels.number(cell.value, cell.spec)
        return Entry(text, _rest(cell, text), value=repr(float(cell.value)))
    if isinstance(cell, Paper) and not math.isnan(cell.low):
        return Entry(str(cell), value=repr(float(cell.low)))
    if isinstance(cell, Key) and isinstance(cell.value, int | float):
        return Entry(str(cell), value=repr(float(cell.value)))
    return Entry(str(cell), kind=_kind(str(cell)))


def _rest(cell: Number | Audit, text: str) -> str:
    """The part of a printed cell after a text: an interval, or scores."""
    return str(cell).removeprefix(text) if text else ""


def _kind(verdict: str) -> str:
    finding = Finding.BIASED if is_biased(verdict) else verdict
    return str(finding) if finding in list(Finding) else ""


def picture(figure: Figure, stem: str, words: str) -> dict[str, Any]:
    """Attributes of a figure's image.

    words: its content; its title and those of panels and axes are added.
    """
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": stem, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    payload = base64.b64encode(buffer.getvalue()).decode("ascii")
    parts = [words, figure.get_suptitle(), figure.get_supxlabel(), figure.get_supylabel()]
    for axes in figure.axes:
        parts += [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
    for legend in figure.legends:
        parts += [text.get_text() for text in (legend.get_title(), *legend.get_texts())]
    distinct = dict.fromkeys(" ".join(part.split()).rstrip(".") for part in parts if part)
    return {
        "source": f"data:image/svg+xml;base64,{payload}",
        "alt": ". ".join(distinct) + ".",
        "width": round(figure.get_size_inches()[0] * 96),
    }
