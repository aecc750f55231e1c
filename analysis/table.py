"""Tables of typed cells, and their files: CSV for programs,
Markdown for people and LaTeX for a paper.

A cell is a value until a renderer prints it: `str(cell)` is its text in Markdown and LaTeX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pandas as pd
from tabulate import tabulate

from analysis.labels import ABSENT, number, rounded
from resispec.files import write_atomically

NAN = math.nan


@dataclass(frozen=True)
class Key:
    """A cell that names its row. value: a label, a temperature, a count; text: its printed form."""

    value: Any
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Number:
    """A measured number, with its interval where it has one: "2.51 [2.43, 2.60]"; NaN is "–"."""

    value: float
    low: float = NAN
    high: float = NAN
    spec: str = ".2f"

    @classmethod
    def of(cls, measured: Any, spec: str) -> Number:
        """The number of an `Interval`, or of a row with value, lower and upper."""
        numbers = measured if isinstance(measured, Mapping) else vars(measured)
        return cls(numbers["value"], numbers["lower"], numbers["upper"], spec)

    def __str__(self) -> str:
        if math.isnan(self.low):
            return number(self.value, self.spec)
        value, low, high = (number(value, self.spec) for value in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"


@dataclass(frozen=True)
class Paper:
    """A published number, or the range of several: "2.51" or "2.51–2.64"; NaN is "–"."""

    low: float
    high: float
    spec: str = ".2f"

    def __str__(self) -> str:
        low, high = number(self.low, self.spec), number(self.high, self.spec)
        return low if low == high else f"{low}–{high}"


@dataclass(frozen=True)
class Audit:
    """The verdict of an audit: "biased (z 9.7, 12.3; 1,536 tokens)".

    verdict: a `Finding`, or the state of an audit that did not finish ("audit failed"); "" without
    an audit. z: of surprisal and overdraft, NaN if unknown. tokens: their number, NaN if the audit
    did not finish. rows: the count of rows with the verdict, in place of the numbers: "biased (6 of
    8 rows)".
    """

    verdict: str = ""
    z: tuple[float, ...] = ()
    tokens: float = NAN
    rows: str = ""

    def __str__(self) -> str:
        if self.rows:
            return f"{self.verdict} ({self.rows})"
        if math.isnan(self.tokens):
            return self.verdict or ABSENT
        scores = ", ".join(f"{z:.1f}" for z in self.z if not math.isnan(z))
        return f"{self.verdict} (z {scores}; {self.tokens:,.0f} tokens)"


@dataclass(frozen=True)
class Gap:
    """The state of a cell that is not done, in place of its first number;
    the CSV has the whole reason.
    """

    status: str
    reason: str = ""

    def __str__(self) -> str:
        text = f"{self.status}: {self.reason}" if self.reason else self.status
        return text if len(text) <= 60 else text[:59] + "…"


TableCell: TypeAlias = str | Key | Number | Paper | Audit | Gap
ColumnKind: TypeAlias = Literal["key", "number", "paper", "audit", "text"]
Found: TypeAlias = Mapping[tuple[Any, ...], Mapping[str, Any]]
"""The rows of one line, by the values that tell them apart, such as the quantity; ()
has the first row.
"""


@dataclass(frozen=True)
class Column:
    """A column of a table. key: the label or the quantity that it holds. header: its printed name.

    kind: "key" for the first columns, which name a row. of: the verifier of its numbers, where
    verifiers stand side by side. A column of the paper's figures has the key and `of` of the
    numbers that it follows. cell: makes the cell of a line from its rows.
    """

    key: str
    header: str
    kind: ColumnKind
    of: str = ""
    cell: Callable[[Found], TableCell] = field(default=lambda _: ABSENT, repr=False, compare=False)


Note: TypeAlias = str | Mapping[str, str]
"""A paragraph of Markdown, or definitions: name -> meaning, a sentence without its full stop."""


@dataclass(frozen=True)
class Notes:
    """The notes below a table, in the order of print; iterating gives their texts,
    without the picture's.

    about: the table's own notes. picture: words for its figure, STEM.png; "" without one. source:
    the origin of its numbers. definitions: the meanings of the columns, brackets and audits. gaps:
    what is missing. stale: parts that are older than their configuration.
    """

    about: tuple[Note, ...] = ()
    picture: str = ""
    source: str = ""
    definitions: tuple[Note, ...] = ()
    gaps: str = ""
    stale: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        for part in (*self.about, self.source, *self.definitions, self.gaps, *self.stale):
            if isinstance(part, Mapping):
                yield ". ".join(f"{name}: {meaning}" for name, meaning in part.items()) + "."
            elif part:
                yield part


@dataclass(frozen=True)
class Table:
    """One table.

    stem: the name of its files. frame: all numbers with all digits. caption: its subject.

    rows: each has as many cells as there are columns. The columns of kind "key" come first.
    """

    stem: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    caption: str
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: Notes = field(default_factory=Notes)

    @property
    def num_keys(self) -> int:
        """The count of columns that name a row."""
        return sum(column.kind == "key" for column in self.columns)


def plain(
    stem: str,
    frame: pd.DataFrame,
    caption: str,
    notes: Notes | Sequence[Note] = (),
    specs: Mapping[str, str] = {},
    shown: pd.DataFrame | None = None,
) -> Table:
    """A table of a data frame, column by column.

    specs: column -> the format of its values; other columns have ".2f" for floats, and text as it
    is. NaN and None are "–". The columns before the first column of numbers name a row. shown: the
    printed table in place of the frame's values, as texts; its index names the rows.
    """
    if shown is None:
        specs = (
            dict.fromkeys(frame, "")
            | dict.fromkeys(frame.select_dtypes("float"), ".2f")
            | dict(specs)
        )
        texts = {
            name: [
                ABSENT if pd.isna(value) else format(value, specs[name])
                for value in frame[name].tolist()
            ]
            for name in frame
        }
        shown = pd.DataFrame(texts, index=frame.index)
        is_number = [pd.api.types.is_numeric_dtype(frame[name]) for name in frame]
        num_keys = [*is_number, True].index(True)
    else:
        num_keys, shown = shown.index.nlevels, shown.reset_index()
    kinds = ["key"] * num_keys + ["text"] * (shown.shape[1] - num_keys)
    columns = tuple(
        Column(str(name), str(name), kind) for name, kind in zip(shown, kinds, strict=True)
    )
    rows = tuple(
        (
            *(Key(key, str(key)) for key in row[:num_keys]),
            *(str(cell) or ABSENT for cell in row[num_keys:]),
        )
        for row in shown.to_numpy().tolist()
    )
    notes = notes if isinstance(notes, Notes) else Notes(tuple(notes))
    return Table(stem, columns, rows, caption, frame, notes)


def write(table: Table, folder: Path, suffixes: Iterable[str] = ("csv", "md", "tex")) -> list[Path]:
    """Write `folder/stem.csv`, `.md` and `.tex`, each atomically;
    make the folder, return the paths.
    """
    renderers = {"csv": csv, "md": markdown, "tex": latex}
    paths = [folder / f"{table.stem}.{suffix}" for suffix in suffixes]
    for path in paths:
        write_atomically(path, renderers[path.suffix[1:]](table))
    return paths


def csv(table: Table) -> str:
    """The frame, with `rounded` numbers."""
    return table.frame.to_csv(index=False, float_format=lambda value: repr(rounded(value)))


def markdown(table: Table) -> str:
    """The caption, the padded table and the notes, in Markdown."""
    rows = [[str(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    sides = ["left" if column.kind == "key" else "right" for column in table.columns]
    headers = [column.header for column in table.columns]
    text = tabulate(
        rows, headers, tablefmt="pipe", disable_numparse=True, colalign=sides if rows else ()
    )
    paragraphs = [f"**{table.caption}**", text]
    if table.notes.picture:
        paragraphs.append(f"![{table.notes.picture}]({table.stem}.png)")
    return "\n\n".join([*paragraphs, *table.notes]) + "\n"


_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
    "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--", "…": r"\ldots{}", "×": r"$\times$", "·": r"$\cdot$",
})  # fmt: skip


def escape(text: str) -> str:
    """Text as LaTeX source."""
    return text.translate(_TEX)


def latex(table: Table) -> str:
    """The table for a paper; needs booktabs and graphicx.

    Space separates groups: other keys but the last.
    """
    num_keys = table.num_keys
    groups = groupby(table.rows, lambda row: [str(cell) for cell in row[: max(num_keys - 1, 0)]])
    body = [line for _, rows in groups for line in (r"\addlinespace", *map(_tex_line, rows))][1:]
    return "\n".join([
        r"\begin{table*}[t]", r"\centering",
        rf"\caption{{{escape(table.caption)}}}", rf"\label{{tab:{table.stem}}}",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{{'l' * num_keys + 'r' * (len(table.columns) - num_keys)}}}",
        r"\toprule",
        _tex_line([column.header for column in table.columns]), r"\midrule", *body,
        r"\bottomrule", r"\end{tabular}}",
        r"\par\smallskip", r"\begin{minipage}{\textwidth}\footnotesize",
        *(escape(note) + r"\par" for note in table.notes), r"\end{minipage}", r"\end{table*}", "",
    ])  # fmt: skip


def _tex_line(cells: Iterable[object]) -> str:
    return " & ".join(escape(str(cell)) for cell in cells) + r" \\"
