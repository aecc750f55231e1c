"""Long frames, one number per row, and lines of tables: columns of names, then of numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis import labels
from analysis.load import Results
from analysis.stats import Interval
from analysis.table import NAN, Column, ColumnKind, Found, Gap, Key, Number, Paper, TableCell

CEILING = "ceiling"
"""Name in place of a verifier: the most that an exact verifier can reach."""
RUN = "run"
"""Column of a long frame with the number of a run, where cells were run several times."""
SIDE_BY_SIDE = ("verifier", RUN)
"""Columns of a long frame whose values stand beside each other in a line, see `Column.of`."""
NO_ROW = dict.fromkeys(("value", "lower", "upper", "paper_low", "paper_high"), NAN)


def records(about: Mapping[str, Any], numbers: Mapping[str, Interval]) -> list[dict[str, Any]]:
    """Rows of a long frame, one per quantity. about: the columns that all of them share."""
    return [{**about, "quantity": name, **vars(interval)} for name, interval in numbers.items()]


def with_ceilings(results: Results) -> Iterator[list[tuple[dict[str, Any], pd.DataFrame | None]]]:
    """The lines of each setting: `Results.each`'s, and the first finished one again for CEILING.

    The ceiling does not depend on the verifier, so all cells of a setting have the same ceiling.
    """
    for _, cells in results.cells.groupby([*results.setting], sort=False):
        lines = list(replace(results, cells=cells).each())
        ceilings = [
            (about | {"verifier": CEILING}, rows) for about, rows in lines if rows is not None
        ]
        yield lines + ceilings[:1]


def split_keys(cells: pd.DataFrame, keys: Iterable[str]) -> tuple[list[str], str]:
    """Keys that tell rows apart, and a caption's sentence of the others: " Pair: embedded pair."

    An empty label does not count as a value (autoregressive decoding has no tree). "method" is
    always among the keys that tell rows apart.
    """
    values = {
        key: [value for value in dict.fromkeys(cells.get(key, ())) if value != ""] for key in keys
    }
    varying = [key for key in values if key == "method" or len(values[key]) > 1]
    fixed = [
        f"{labels.header(key)}: {labels.text(key, entries[0])}"
        for key, entries in values.items()
        if key not in varying and entries
    ]
    return varying, f" {', '.join(fixed)}." if fixed else ""


def key_cell(row: Mapping[str, Any], key: str) -> Key:
    """The cell with a row's label of a key; the key "method" means decoder and verifier."""
    if key == "method":
        pair = row["decoder"], row["verifier"]
        return Key(pair, labels.method(*pair), labels.method(*pair, is_short=True))
    if key == "verifier" and row[key]:
        return Key(row[key], labels.text(key, row[key]), labels.short(row[key]))
    return Key(row[key], labels.text(key, row[key]))


def names(keys: Iterable[str], **headers: str) -> list[Column]:
    """Columns of labels that name a line.

    headers: further keys, or keys with a header of their own here.
    """
    headers = {key: labels.header(key) for key in keys} | headers
    return [
        Column(key, header, "key", cell=lambda rows, key=key: key_cell(rows[()], key))
        for key, header in headers.items()
    ]


def named(key: str, header: str, text: Callable[[Mapping[str, Any]], str]) -> Column:
    """A column that names a line by a text made from its first row."""
    return Column(key, header, "key", cell=lambda rows: Key(rows[()][key], text(rows[()])))


def words(
    key: str, header: str, text: Callable[[Mapping[str, Any]], str], kind: ColumnKind = "text"
) -> Column:
    """A column of words made from a line's first row.

    kind: "number" for words that contain numbers.
    """
    return Column(key, header, kind, cell=lambda rows: text(rows[()]) or labels.ABSENT)


def number(header: str, spec: str, *place: Any, of: str = "", brackets: bool = True) -> Column:
    """A column of numbers.

    place: a line's row (see `tabulate`), its quantity first. of: see `Column`.
    """

    def cell(rows: Found) -> Number:
        number = Number.of(rows.get(place, NO_ROW), spec)
        return number if brackets else Number(number.value, spec=spec)

    return Column(place[0], header, "number", of, cell)


def figure(header: str, spec: str, *place: Any, of: str = "") -> Column:
    """A column of the paper's figures, from paper_low to paper_high of the row at a place."""

    def cell(rows: Found) -> Paper:
        row = rows.get(place, NO_ROW)
        return Paper(row["paper_low"], row["paper_high"], spec)

    return Column(place[0], header, "paper", of, cell)


def tabulate(
    frame: pd.DataFrame,
    by: Iterable[str],
    columns: Iterable[Column],
    places: Sequence[str] = ("quantity",),
) -> tuple[tuple[Column, ...], tuple[tuple[TableCell, ...], ...]]:
    """The columns and the lines of a table.

    by: columns of the frame whose values the rows of a line share. places: columns that tell these
    rows apart. If a cell is not done, its state is printed in place of the first number of its
    line, or of the numbers of its verifier or run where these stand side by side.
    """
    columns, lines = tuple(columns), []
    beside = next((place for place in places if place in SIDE_BY_SIDE), "")
    for _, group in frame.groupby(list(by), sort=False, dropna=False) if len(frame) else ():
        rows = group.to_dict("records")
        by_place = {tuple(row[place] for place in places): row for row in rows} | {(): rows[0]}
        gaps = {
            str(row[beside]) if beside else "": Gap(row["status"], row["reason"])
            for row in rows
            if row.get("status", "done") != "done"
        }
        cells = []
        for column in columns:
            gap = gaps.pop(column.of, None) if column.kind == "number" else None
            cells.append(gap or column.cell(by_place))
        lines.append(tuple(cells))
    return columns, tuple(lines)
