"""Tables and figures in the form in which the page's template shows them."""

from __future__ import annotations

import base64
import io
import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure

from analysis import labels
from analysis.load import STATES
from analysis.metrics import METRICS
from analysis.page.text import PICTURE
from analysis.report import Table
from resispec.audit.verdict import Finding

GAPS = (*STATES[1:], "missing")
NUMBER = r"[-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?%?"
NUMERIC = re.compile(rf"^{NUMBER}(?:–{NUMBER}| \[{NUMBER}, {NUMBER}\]| \({NUMBER}\))?$")
"""A number, with a range, an interval or an error: such columns are sorted by the first number."""
PAPER, AUDIT = "(paper)", "Audit"
"""Names of columns; an audit's may go on: "Audit of ResiSpec"."""
SOURCE, INCOMPLETE = "Profile: ", "Incomplete: "
"""How the notes begin that say where a table's numbers are from, and what is missing."""


@dataclass(frozen=True)
class Column:
    """of: what a column headed "(paper)" stands beside. kind: "key", "number" or "text"."""

    label: str
    of: str
    kind: str

    @property
    def is_paper(self) -> bool:
        """Whether it has the paper's numbers."""
        return self.label.endswith(PAPER)


@dataclass(frozen=True)
class Entry:
    """A cell of a table. kind: a `Finding`, "gap" for what is not measured, "absent" for nothing, or ""."""

    text: str
    kind: str

    @property
    def parts(self) -> tuple[str, str]:
        """What is read first, and what stands beside it: an interval, or the numbers behind a finding."""
        main, bracket, rest = self.text.partition(" (" if self.kind in list(Finding) else " [")
        return main, f"{bracket}{rest}"


@dataclass(frozen=True)
class Grid:
    """A table. definitions: what numbers mean, by their names. notes: the others. source, gap: of their own.

    bars: of every row its numbers over the largest of all rows, drawn before them; none where they are not
    drawn.
    """

    stem: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    num_keys: int
    definitions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""
    gap: str = ""
    bars: tuple[tuple[float, ...], ...] = ()


def grid(table: Table, with_bars: bool = False, but: Collection[str] = ()) -> Grid:
    """A table as it is shown: what audits say comes right after what names a row.

    with_bars: draw a row's numbers, too. but: notes that stand elsewhere.
    """
    order = sorted(range(table.shown.shape[1]), key=lambda place: _rank(place, table))
    shown = table.shown.iloc[:, order]
    of = _paper_of([str(name) for name in table.shown.columns])
    rows = tuple(tuple(_entry(str(text)) for text in row) for row in shown.to_numpy().tolist())
    columns = []
    for place, name in enumerate(map(str, shown.columns)):
        entries = [row[place] for row in rows if row[place].kind not in ("gap", "absent")]
        is_number = bool(entries) and all(NUMERIC.match(entry.text) for entry in entries)
        kind = "key" if place < table.num_keys else "number" if is_number else "text"
        columns.append(Column(name, of[order[place]], kind))
    definitions, notes = _definitions(
        [note for note in table.notes if note not in but], [column.label for column in columns]
    )
    source, gap = (next((note for note in notes if note.startswith(one)), "") for one in (SOURCE, INCOMPLETE))
    return Grid(
        table.stem,
        table.caption,
        tuple(columns),
        rows,
        table.num_keys,
        definitions=definitions,
        notes=tuple(note for note in notes if note not in (source, gap) and not PICTURE.match(note)),
        source=source,
        gap=gap,
        bars=_bars([row[table.num_keys :] for row in rows]) if with_bars else (),
    )


def _rank(place: int, table: Table) -> tuple[bool, bool]:
    """Keys, audits, numbers; each in their order."""
    return place >= table.num_keys, str(table.shown.columns[place]).partition(" ")[0] != AUDIT


def _paper_of(names: Sequence[str]) -> list[str]:
    """For every column what its "(paper)" stands beside: the one before it; "" for the others."""
    return ["", *(before if name == PAPER else "" for before, name in itertools.pairwise(names))]


def _entry(text: str) -> Entry:
    """A cell and what kind it is, which its first word says."""
    first = re.match(r"\w*", text)
    word = first[0] if first else ""
    if text == labels.ABSENT:
        return Entry(text, "absent")
    if word in GAPS and text.partition(":")[0] in GAPS:
        return Entry(text, "gap")
    return Entry(text, word if word in list(Finding) else "")


def _bars(rows: Sequence[Sequence[Entry]]) -> tuple[tuple[float, ...], ...]:
    numbers = [
        [float(found[0].rstrip("%")) for entry in row if (found := re.match(NUMBER, entry.text))]
        for row in rows
    ]
    largest = max(itertools.chain(*numbers), default=1.0) or 1.0
    return tuple(tuple(number / largest for number in row) for row in numbers)


def _definitions(
    notes: Sequence[str], columns: Sequence[str]
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Split off what numbers mean: notes that begin with "COLUMN: " or "METRIC: ", as names and meanings."""
    known = {name for name in columns if name != PAPER} | {metric.label for metric in METRICS}
    names = sorted(map(re.escape, known), key=len, reverse=True)
    opening = re.compile(rf"(?:^|(?<=\. ))({'|'.join(names)}): ")
    definitions, others = [], []
    for note in notes:
        if opening.match(note):
            parts = opening.split(note)[1:]
            definitions += [(name, text.strip()) for name, text in zip(parts[::2], parts[1::2], strict=True)]
        else:
            others.append(note)
    return tuple(definitions), tuple(others)


@dataclass(frozen=True)
class Picture:
    """A figure as an image that is part of the page. alt: what it shows. width: in pixels."""

    source: str
    alt: str
    width: int


def picture(stem: str, figure: Figure, notes: Sequence[str]) -> Picture:
    """A figure as SVG. notes: of its table, one of which says what the figure shows."""
    drawn = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": stem, "svg.fonttype": "path"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    encoded = base64.b64encode(drawn.getvalue()).decode("ascii")
    said = [found[1] for note in notes if (found := PICTURE.match(note)) and found[2].startswith(f"{stem}.")]
    alt = ". ".join([*(said or [f"Figure of {stem}"]), *_described(figure)])
    return Picture(f"data:image/svg+xml;base64,{encoded}", f"{alt}.", round(figure.get_size_inches()[0] * 96))


def _described(figure: Figure) -> list[str]:
    """What a figure itself says: its title, its panels, its axes, its lines."""
    panels = [axes for axes in figure.axes if axes.get_title() or axes.lines]
    along = [figure.get_supxlabel(), *(axes.get_xlabel() for axes in panels)]
    up = [figure.get_supylabel(), *(axes.get_ylabel() for axes in panels)]
    names = [handle.get_label() for axes in panels for handle in axes.get_legend_handles_labels()[0]]
    names += [note.get_text() for axes in panels for note in axes.texts]
    found = [figure.get_suptitle()] if figure.get_suptitle() else []
    described = {
        "Panels": [axes.get_title() for axes in panels],
        "Across": along,
        "Up": up,
        "Shown": names,
    }
    for what, words in described.items():
        distinct = dict.fromkeys(" ".join(str(word).split()) for word in words if word)
        found += [f"{what}: {'; '.join(distinct)}"] if distinct else []
    return [one.rstrip(".") for one in found]
