"""The paper form of a table in LaTeX: 9 pt, at most seven columns, the notes in the caption.

It stands in one column of a paper where it is narrow enough, else across two. The names that
several rows share are headings of groups. What has no room is left out, the least needed first,
and the caption says so; the CSV has all. A document needs the packages array and booktabs.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from textwrap import wrap

from analysis.table import Audit, Gap, Notes, Number, Table, TableCell

MAX_COLUMNS = 7
ONE_COLUMN, TWO_COLUMNS = 234.0, 397.0
"""The widest table in one of two columns (3.25 in) and on a page with one (5.5 in), in points."""
MAX_CAPTION = 2400
"""The most characters of a caption; TeX itself cannot set more than some 3,400 as a caption."""
STUB = 120.0
"""The widest column of names or words, in points; longer ones are wrapped."""
_DIGIT, _SMALL, _GAP = 4.7, 3.7, 6.0
"""The widths of a character at 9 pt and at 7 pt, and of the space between columns, in points."""
_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
    "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}",
    "–": "--", "…": r"\ldots{}", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\le$", "≥": r"$\ge$",
    "−": "$-$", "␣": r"\textvisiblespace{}", "⏎": r"$\hookleftarrow$",
})  # fmt: skip


@dataclass(frozen=True)
class _Form:
    """A table as it is printed.

    num_grouping: the count of first columns that are headings of groups. is_short: whether only the
    first numbers have intervals, and verdicts no numbers.
    """

    table: Table
    num_grouping: int
    is_short: bool

    def parts(self, place: int, cell: TableCell) -> tuple[str, str]:
        """The text of a cell in a column, and the text in small letters after it."""
        if isinstance(cell, Audit):
            return cell.head, "" if self.is_short else cell.numbers
        if isinstance(cell, Number):
            is_bare = self.is_short and self.table.need(self.table.columns[place])
            return cell.head, "" if is_bare else cell.interval
        return cell.status if isinstance(cell, Gap) else str(cell), ""

    def widths(self) -> list[float]:
        """The widths of the columns that are no headings, in points."""
        names, widths = self.table.names(), []
        for place in range(self.num_grouping, len(self.table.columns)):
            texts = [self.parts(place, row[place]) for row in self.table.rows]
            if place < self.table.num_keys:
                texts = [(row[place], "") for row in names]
            cells = [_DIGIT * len(text) + _SMALL * len(more) for text, more in texts]
            words = [_DIGIT * len(word) for word in self.table.columns[place].header.split()]
            width = max([*cells, *words], default=0.0)
            is_wrapped = self.table.columns[place].kind in ("key", "text")
            widths.append(min(width, STUB) if is_wrapped else width)
        return widths

    @property
    def width(self) -> float:
        """The width of the table, in points."""
        widths = self.widths()
        return sum(widths) + _GAP * (len(widths) - 1)


def latex(table: Table) -> str:
    """The paper form of a table."""
    form = _fitting(table)
    table, widths = form.table, form.widths()
    is_narrow = form.width <= ONE_COLUMN
    layout = "table" if is_narrow else "table*"
    shown = table.columns[form.num_grouping :]
    sides = [
        rf">{{\raggedright\arraybackslash}}p{{{STUB:.0f}pt}}"
        if column.kind in ("key", "text") and width >= STUB
        else "l"
        if column.kind == "key"
        else "r"
        for column, width in zip(shown, widths, strict=True)
    ]
    headers = [_header(column.header, width) for column, width in zip(shown, widths, strict=True)]
    return "\n".join([
        rf"\begin{{{layout}}}[t]", r"\centering", rf"\caption{{{_caption(form)}}}",
        rf"\label{{tab:{table.stem}}}", r"\fontsize{9}{10.8}\selectfont",
        rf"\setlength{{\tabcolsep}}{{{_GAP / 2:g}pt}}",
        rf"\begin{{tabular}}{{@{{}}{''.join(sides)}@{{}}}}", r"\toprule",
        " & ".join(headers) + r" \\", r"\midrule", *_body(form, len(widths)), r"\bottomrule",
        r"\end{tabular}", rf"\end{{{layout}}}", "",
    ])  # fmt: skip


def escape(text: str) -> str:
    """Text as LaTeX source."""
    return text.translate(_TEX)


def _fitting(table: Table) -> _Form:
    """The form with the most needed columns that fit.

    It has all intervals if there is room for them, else those of the first numbers.
    """
    num_grouping = table.num_grouping()
    if table.num_keys - num_grouping >= MAX_COLUMNS:
        num_grouping = table.num_keys - MAX_COLUMNS + 1
    places = sorted(range(len(table.columns)), key=lambda place: table.need(table.columns[place]))
    count = min(len(places), num_grouping + MAX_COLUMNS)
    while True:
        chosen = table.only(sorted(places[:count]))
        forms = [_Form(chosen, num_grouping, is_short) for is_short in (False, True)]
        fitting = [form for form in forms if form.width <= TWO_COLUMNS]
        if fitting or count <= table.num_keys + 1:
            form = fitting[0] if fitting else forms[-1]
            left = [table.columns[place] for place in sorted(places[count:])]
            return _Form(_noted(form, [column.header for column in left]), num_grouping,
                         form.is_short)  # fmt: skip
        count -= 1


def _noted(form: _Form, headers: Sequence[str]) -> Table:
    """The table of a form with a note about what is left out."""
    parts = [*dict.fromkeys(headers)]
    if form.is_short and form.widths() != _Form(form.table, form.num_grouping, False).widths():
        parts.append("further intervals and scores")
    if not parts:
        return form.table
    note = f"Not shown, but in {form.table.stem}.csv: {', '.join(parts)}."
    return replace(
        form.table, notes=replace(form.table.notes, about=(note, *form.table.notes.about))
    )


def _caption(form: _Form) -> str:
    """The caption with the notes that have room, the most needed first.

    Its last sentence says where the others are. Code in backquotes is set in typewriter letters.
    """
    table, notes = form.table, form.table.notes
    headers = {column.header for column in table.columns}
    meanings = [
        {name: meaning for name, meaning in note.items() if name in headers}
        if isinstance(note, Mapping)
        else note
        for note in notes.definitions
    ]
    ordered = Notes((notes.gaps, *notes.about, *filter(None, meanings), notes.source, *notes.stale))
    paragraphs = [table.caption]
    for note in ordered:
        if sum(map(len, paragraphs)) + len(note) <= MAX_CAPTION:
            paragraphs.append(note)
        elif paragraphs[-1] != (more := f"Further notes: {table.stem}.md."):
            paragraphs = [*(one for one in paragraphs if one != more), more]
    text = escape(" ".join(paragraphs))
    return re.sub(r"(`+) ?(.+?) ?\1", r"\\texttt{\2}", text.replace("**", ""))


def _header(text: str, width: float) -> str:
    lines = [escape(line) for line in wrap(text, max(1, round(width / _DIGIT)))] or [""]
    return lines[0] if len(lines) == 1 else r"\shortstack{" + r"\\".join(lines) + "}"


def _body(form: _Form, num_columns: int) -> list[str]:
    table, names = form.table, form.table.names()
    lines: list[str] = []
    pairs = zip(names, table.rows, strict=True)
    for group, rows in groupby(pairs, lambda pair: pair[0][: form.num_grouping]):
        if lines:
            lines.append(r"\addlinespace")
        if group:
            heading = escape(table.heading(group))
            lines.append(rf"\multicolumn{{{num_columns}}}{{@{{}}l}}{{\emph{{{heading}}}}} \\")
        for row_names, row in rows:
            cells = [escape(name) for name in row_names[form.num_grouping :]]
            for place in range(table.num_keys, len(row)):
                text, more = form.parts(place, row[place])
                small = rf" {{\fontsize{{7}}{{8}}\selectfont {escape(more)}}}" if more else ""
                cells.append(escape(text) + small)
            lines.append(" & ".join(cells) + r" \\")
    return lines
