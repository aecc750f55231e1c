"""Tables of typed cells, and their files: CSV and JSON for programs, Markdown, LaTeX for a paper.

A cell is a value until a renderer prints it: `str(cell)` is its text in Markdown and LaTeX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from json import dumps
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from tabulate import tabulate

from analysis.labels import ABSENT, GROUPS, number, rounded, short
from resispec.files import write_atomically

NAN = math.nan


@dataclass(frozen=True)
class Key:
    """A cell that names its row. value: a label, a temperature, a count; text: its printed form.

    short: a form for a terminal and a paper, which need not be unique; "" for none.
    """

    value: Any
    text: str
    short: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Number:
    """A measured number, with its interval where it has one: "2.51 [2.43, 2.60]"; NaN is "–".

    mark: of a note that the number needs, printed behind it.
    """

    value: float
    low: float = NAN
    high: float = NAN
    spec: str = ".2f"
    mark: str = ""

    @classmethod
    def of(cls, measured: Any, spec: str) -> Number:
        """The number of an `Interval`, or of a row with value, lower and upper."""
        numbers = measured if isinstance(measured, Mapping) else vars(measured)
        return cls(numbers["value"], numbers["lower"], numbers["upper"], spec)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.head, self.interval)))

    @property
    def head(self) -> str:
        """The value, without its interval; with its mark if there is none."""
        text = number(self.value, self.spec)
        return text if self._has_interval else f"{text} {self.mark}".rstrip()

    @property
    def interval(self) -> str:
        """The interval in brackets, with the mark; "" without one."""
        if not self._has_interval:
            return ""
        bounds = f"[{number(self.low, self.spec)}, {number(self.high, self.spec)}]"
        return f"{bounds} {self.mark}".rstrip()

    @property
    def _has_interval(self) -> bool:
        return not math.isnan(self.low)


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
    did not finish.
    """

    verdict: str = ""
    z: tuple[float, ...] = ()
    tokens: float = NAN

    def __str__(self) -> str:
        return " ".join(filter(None, (self.head, self.numbers)))

    @property
    def head(self) -> str:
        """The verdict alone."""
        return self.verdict or ABSENT

    @property
    def numbers(self) -> str:
        """The numbers behind the verdict, in parentheses; "" without any."""
        if math.isnan(self.tokens):
            return ""
        scores = ", ".join(f"{z:.1f}" for z in self.z if not math.isnan(z))
        return f"(z {scores}; {self.tokens:,.0f} tokens)"


@dataclass(frozen=True)
class Gap:
    """The state of a cell not done, in place of its first number; the CSV has the whole reason."""

    status: str
    reason: str = ""

    def __str__(self) -> str:
        text = f"{self.status}: {self.reason}" if self.reason else self.status
        return text if len(text) <= 60 else text[:59] + "…"


TableCell: TypeAlias = str | Key | Number | Paper | Audit | Gap
ColumnKind: TypeAlias = Literal["key", "number", "paper", "audit", "text"]
Found: TypeAlias = Mapping[tuple[Any, ...], Mapping[str, Any]]
"""Rows of a line, by the values that tell them apart, such as the quantity; () has the first."""


@dataclass(frozen=True)
class Column:
    """A column of a table. key: the label or the quantity that it holds. header: its printed name.

    kind: "key" for the first columns, which name a row. of: the verifier or the run of its numbers,
    where several stand side by side. A column of the paper's figures has the key and `of` of the
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
    """The notes below a table, in the order of print; iterating gives all texts but the picture's.

    about: the table's own notes. picture: words for its figure, STEM.png or .svg; "" without one.
    source: the origin of its numbers. definitions: the meanings of the columns, brackets and
    audits. gaps: what is missing. stale: parts that are older than their configuration.
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

    rows: each has as many cells as there are columns. The columns of kind "key" come first. facts:
    the origin of its numbers for programs, such as profile and commit.
    """

    stem: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    caption: str
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: Notes = field(default_factory=Notes)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_keys(self) -> int:
        """The count of columns that name a row."""
        return sum(column.kind == "key" for column in self.columns)

    def only(self, places: Sequence[int]) -> Table:
        """The table with these of its columns, in this order."""
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in places), rows=rows)

    def need(self, column: Column) -> int:
        """The need of a column where there is no room for all; 0 is the highest.

        Names of rows come first, and the first quantity; then verdicts and states, other numbers,
        and at last the paper's figures.
        """
        numbers = [other.key for other in self.columns if other.kind == "number"]
        if column.kind == "key" or (column.kind == "number" and column.key == numbers[0]):
            return 0
        if column.kind == "audit" or column.key in ("verdict", "status"):
            return 1
        return 3 if column.kind == "paper" else 2

    def num_grouping(self) -> int:
        """The count of first columns whose values make good headings of groups of rows.

        They are as many names of rows as leave two rows a group in the mean; the last name is none
        of them.
        """
        texts = [[str(cell) for cell in row] for row in self.rows]
        for count in range(self.num_keys - 1, 0, -1):
            num_groups = len(list(groupby(texts, itemgetter(slice(count)))))
            if 2 * num_groups <= len(texts):
                return count
        return 0

    def names(self) -> list[list[str]]:
        """The names of every row, short where short forms are as distinct."""
        texts = [[str(cell) for cell in row[: self.num_keys]] for row in self.rows]
        for place in range(self.num_keys):
            forms = {str(row[place]): getattr(row[place], "short", "") for row in self.rows}
            forms = {name: form or name for name, form in forms.items()}
            if len(set(forms.values())) == len(forms):
                for row in texts:
                    row[place] = forms[row[place]]
        return texts

    def heading(self, names: Sequence[str]) -> str:
        """The heading of a group of rows: "T = 1, CNN/DM". names: those of its first columns."""
        return ", ".join(
            name if column.key in (*GROUPS, "method") else f"{column.header} = {name}"
            for column, name in zip(self.columns, names, strict=False)
        )


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
            *(
                Key(key, str(key), short(key) if column.key == "verifier" else "")
                for column, key in zip(columns, row[:num_keys], strict=False)
            ),
            *(str(cell) or ABSENT for cell in row[num_keys:]),
        )
        for row in shown.to_numpy().tolist()
    )
    notes = notes if isinstance(notes, Notes) else Notes(tuple(notes))
    return Table(stem, columns, rows, caption, frame, notes)


def write(
    table: Table,
    folder: Path,
    suffixes: Iterable[str] = ("csv", "md", "tex"),
    picture: str = "png",
) -> list[Path]:
    """Write `folder/stem.csv`, `.md` and `.tex`, and `.json` beside the CSV; return the paths.

    It makes the folder, and writes each file atomically. picture: see `markdown`.
    """
    from analysis.latex import latex  # it renders what is declared here

    shown = partial(markdown, picture=picture)
    renderers = {"csv": csv, "json": json, "md": shown, "tex": latex}
    paths = []
    for suffix in suffixes:
        paths.append(folder / f"{table.stem}.{suffix}")
        if suffix == "csv":
            paths.append(folder / f"{table.stem}.json")
    for path in paths:
        write_atomically(path, renderers[path.suffix[1:]](table))
    return paths


def csv(table: Table) -> str:
    """The frame, with `rounded` numbers."""
    return table.frame.to_csv(index=False, float_format=lambda value: repr(rounded(value)))


def json(table: Table) -> str:
    """The caption, the facts, and the frame's rows as records.

    `rounded` numbers are numbers, null is an absent value, a label or an infinite number is a text.
    """
    header = {"table": table.stem, "caption": table.caption, **table.facts}
    records = [
        {name: _value(value) for name, value in row.items()}
        for row in table.frame.to_dict("records")
    ]
    lines = ",\n".join(dumps(record, ensure_ascii=False, allow_nan=False) for record in records)
    return f'{{"header": {dumps(header, ensure_ascii=False)},\n"records": [\n{lines}\n]}}\n'


def _value(value: Any) -> str | int | float | bool | None:
    """A value of a frame in JSON."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(value) if math.isinf(value) else rounded(value)
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    return value if isinstance(value, bool | int) else str(value)


def markdown(table: Table, picture: str = "png") -> str:
    """The caption, the padded table and the notes, in Markdown.

    picture: the format of the figure that it shows; "" for none.
    """
    rows = [[str(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    sides = ["left" if column.kind == "key" else "right" for column in table.columns]
    headers = [column.header for column in table.columns]
    text = tabulate(
        rows, headers, tablefmt="pipe", disable_numparse=True, colalign=sides if rows else ()
    )
    paragraphs = [f"**{table.caption}**", text]
    if table.notes.picture and picture:
        paragraphs.append(f"![{table.notes.picture}]({table.stem}.{picture})")
    return "\n\n".join([*paragraphs, *table.notes]) + "\n"
