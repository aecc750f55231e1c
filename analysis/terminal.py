"""Tables at a terminal, in its width and in colour; Markdown where stdout is a file or a pipe.

A table that is too wide is printed in the first of several forms that fits: intervals below their
values, names that rows share as headings, without the paper's figures, with the first numbers'
intervals alone, and at last without the least needed columns. A line says what is left out and
where it is. NO_COLOR is respected.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from analysis import labels
from analysis.audits import ENUMERATED
from analysis.table import Audit, Column, Gap, Notes, Number, Paper, Table, TableCell, markdown
from resispec.audit.verdict import Finding

COLOURS = {
    Finding.BIASED: "bold red",
    ENUMERATED: "bold red",
    Finding.INCONSISTENT: "bold red",
    Finding.NO_BIAS_SEEN: "green",
    Finding.UNDECIDED: "yellow",
}
"""Verdict -> its style."""
GAP = "yellow"
QUIET = "dim"
NAME = 28
"""The widest name of a row or a group in a folded form, in characters, but for one long word."""


@dataclass(frozen=True)
class Form:
    """A form of a table.

    is_folded: whether intervals, scores and the paper's figures stand below their numbers.
    is_grouped: whether names that rows share are headings. has_paper: whether it has the paper's
    figures. is_short: whether only the first numbers have intervals, and verdicts no scores.
    is_in_line: whether intervals stand beside their numbers all the same.
    """

    is_folded: bool = False
    is_grouped: bool = False
    has_paper: bool = True
    is_short: bool = False
    is_in_line: bool = False


FORMS = (
    Form(),
    Form(is_folded=True),
    Form(is_folded=True, is_grouped=True),
    Form(is_folded=True, is_grouped=True, has_paper=False),
    Form(is_folded=True, is_grouped=True, has_paper=False, is_short=True, is_in_line=True),
    Form(is_folded=True, is_grouped=True, has_paper=False, is_short=True),
)


def printed(table: Table, file: str = "") -> str:
    """The text of a table for stdout, with its last line's end.

    file: the path of a file with the whole table; "" if there is none. A page has its notes, too:
    what columns mean is then left to it.
    """
    if not sys.stdout.isatty():
        return markdown(table)
    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as capture:
        for part in _parts(table, console, file):
            console.print(part)
    return capture.get()


def _parts(table: Table, console: Console, file: str) -> Iterator[Text | Grid | Markdown | Padding]:
    """The caption, the table, the notes, and a line about what is left out."""
    yield Text(table.caption, style="bold")
    grid, left_out = _fitting(table, console)
    yield grid
    yield Text()
    notes = table.notes
    is_page = file.endswith(".md")
    if is_page:  # it has the others
        notes = Notes(about=notes.about, gaps=notes.gaps, stale=notes.stale)
    for note in notes:
        yield Padding(Markdown(note), (0, 0, 1, 0), style=QUIET)
    elsewhere = file or "the same command with `| cat`"
    if left_out:
        yield Text(f"not shown for want of width: {', '.join(left_out)}; {elsewhere} has all")
    elif is_page:
        yield Text(f"what columns and brackets mean: {file}", style=QUIET)


def _fitting(table: Table, console: Console) -> tuple[Grid, list[str]]:
    """The first form that fits the width, and the names of what it leaves out."""
    order = sorted(range(len(table.columns)), key=lambda place: table.need(table.columns[place]))
    wide = console.options.update(width=10_000)  # else a width is measured as wrapped
    whole = [(form, table, list[str]()) for form in FORMS]
    least = max(table.num_keys + 1, 1)
    narrower = (
        (FORMS[-1], table.only(sorted(order[:count])), _headers(table, order[count:]))
        for count in range(len(order) - 1, least - 1, -1)
    )
    for form, part, dropped in chain(whole, narrower):
        last = _grid(part, form), _left_out(table, form, dropped)
        if Measurement.get(console, wide, last[0]).maximum <= console.width:
            break
    return last


def _headers(table: Table, places: Sequence[int]) -> list[str]:
    """The headers of columns, but for those of the paper's figures."""
    columns = (table.columns[place] for place in sorted(places))
    return [column.header for column in columns if column.kind != "paper"]


def _left_out(table: Table, form: Form, dropped: Sequence[str]) -> list[str]:
    """The names of what a form leaves out of a table: columns, and parts of cells."""
    cells = [
        (cell, table.need(column))
        for row in table.rows
        for column, cell in zip(table.columns, row, strict=True)
    ]
    names = [*dropped]
    if not form.has_paper and any(column.kind == "paper" for column in table.columns):
        names.append("the paper's figures")
    if form.is_folded and any(isinstance(cell, Gap) and cell.reason for cell, _ in cells):
        names.append("reasons of gaps")
    if form.is_short and any(isinstance(cell, Number) and cell.interval and need
                             for cell, need in cells):  # fmt: skip
        names.append("further intervals")
    if form.is_short and any(isinstance(cell, Audit) and cell.z for cell, _ in cells):
        names.append("z-scores")
    return names


def _grid(table: Table, form: Form) -> Grid:
    """The table of rich in a form."""
    num_grouping = table.num_grouping() if form.is_grouped else 0
    places = [
        place
        for place in range(num_grouping, len(table.columns))
        if table.columns[place].kind != "paper" or not form.is_folded
    ]
    body: list[tuple[str, list[Text]]] = []

    def folded(name: str) -> str:
        return _wrapped(name, NAME) if form.is_folded else name

    for names, row in zip(table.names(), table.rows, strict=True):
        cells = [
            Text(folded(names[place])) if place < table.num_keys else _cell(table, row, place, form)
            for place in places
        ]
        body.append((folded(table.heading(names[:num_grouping])), cells))
    gap = 0 if form.is_short else 1  # beside the space between columns
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0), show_edge=False)
    for index, place in enumerate(places):
        column = table.columns[place]
        is_key = column.kind == "key"
        texts = [line for _, cells in body for line in cells[index].plain.splitlines()]
        header = _wrapped(_header(column), max(map(len, texts), default=0))
        # a name that is too long for any form is broken, not cut
        grid.add_column(header, justify="left" if is_key else "right", no_wrap=not is_key,
                        overflow="fold")  # fmt: skip
    for heading, group in groupby(body, lambda entry: entry[0]):
        if heading:
            grid.add_section()
            grid.add_row(Text(heading, style="italic"))
        for _, cells in group:
            grid.add_row(*cells)
    return grid


def _header(column: Column) -> str:
    """The header of a column, with the short name of its verifier."""
    if not column.of:
        return column.header
    return column.header.replace(labels.name("verifier", column.of), labels.short(column.of))


def _wrapped(text: str, width: int) -> str:
    """A text in lines of at most a width, or of its longest word."""
    longest = max(map(len, text.split()), default=1)
    return "\n".join(wrap(text, max(width, longest), break_long_words=False))


def _cell(table: Table, row: Sequence[TableCell], place: int, form: Form) -> Text:
    """A cell in a form; with the paper's figure of the next column, if that has no column."""
    cell, column = row[place], table.columns[place]
    between = "\n" if form.is_folded and not form.is_in_line else " "
    text = Text()
    if isinstance(cell, Audit):
        text.append(cell.head, COLOURS.get(cell.verdict, ""))
        if cell.numbers and not form.is_short:
            numbers = cell.numbers.replace("; ", ";\n") if form.is_folded else cell.numbers
            text.append(between + numbers, QUIET)
    elif isinstance(cell, Number):
        text.append(cell.head)
        if cell.interval and not (form.is_short and table.need(column)):
            text.append(between + cell.interval, QUIET)
    elif isinstance(cell, Gap):
        text.append(cell.status if form.is_folded else str(cell), GAP)
    else:
        words = str(cell).strip("*")
        style = GAP if column.key == "status" and words != "done" else COLOURS.get(words, "")
        text.append(_wrapped(words, NAME) if form.is_folded else words, style)
    beside = row[place + 1] if place + 1 < len(row) else None
    is_below = form.is_folded and form.has_paper and column.kind == "number"
    if is_below and isinstance(beside, Paper) and not math.isnan(beside.low):
        text.append(f"\npaper {beside}", QUIET)
    return text
