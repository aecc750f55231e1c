"""A page made of toy cells, and its parts as a reader finds them in the HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from toy_cells import (
    AUTOREGRESSIVE,
    METHODS,
    SCALING_ROWS,
    decay_rows,
    kl_rows,
    make_audit,
    make_cell,
    rows_of,
    save,
    write_plan,
)

REASON = "out of <b>memory</b> & more"


def write_results(results: Path) -> None:
    """Table 1 with one data set complete and audited, and of the other two cells failed and missing; others.

    The rows of the standard rule audit as exact, those of ResiSpec as biased.
    """
    cells = [save(make_cell(results, method), rows_of(measured)) for method, measured in METHODS.items()]
    audits = [make_audit(cells[1], 600, 0.0), make_audit(cells[2], 600, 0.2)]
    other = [make_cell(results, method, "embedded_reference") for method in METHODS]
    save(other[0], rows_of(AUTOREGRESSIVE))
    save(other[1], None, "failed", REASON)
    write_plan(results, "table1", [*cells, *audits, *other])
    kl = [
        save(make_cell(results, method, temperature=0.6), kl_rows(found))
        for method, found in (("standard", [[0.0, 0.1], [0.05, 0.0]]), ("resispec", [[0.9, 0.8], [0.7, 0.9]]))
    ]
    write_plan(results, "table4", kl)
    write_plan(results, "table5", [save(make_cell(results, "standard", temperature=0.5), SCALING_ROWS)])
    selected, tested = [[6.0, 0.9]] * 2, [[10.0, 4.0]] * 2
    decay = save(make_cell(results, "standard", temperature=0.4), decay_rows(selected, tested))
    write_plan(results, "figure1", [decay])
    write_plan(results, "frontier", [*cells, *audits], part="d5b3")


@dataclass
class Cell:
    """tag: "th" or "td". kind: its classes."""

    tag: str
    kind: str
    scope: str
    text: str = ""


@dataclass
class Page(HTMLParser):
    """What is in a page: tables by their ids, and what it asks a browser for."""

    source: str
    tables: dict[str, list[list[Cell]]] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)
    headings: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    alts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._cell: Cell | None = None
        self._table = self._section = ""
        self._in_caption = False
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if tag == "a" else []
        self.loaded += [found[name] for name in ("src", "srcset", "data") if name in found]
        self.loaded += [found["href"]] if tag in ("link", "use", "image") else []
        self.alts += [found["alt"]] if tag == "img" else []
        self.headings += [tag] if tag in ("h1", "h2", "h3", "h4") else []
        if tag in ("dd", "p") and self._section:
            self.sections[self._section] += " "
        if tag == "section":
            self._section = found["id"]
            self.sections[self._section] = ""
        elif tag == "table" and "id" in found:
            self._table = found["id"].removeprefix("data-")
            self.tables[self._table], self.captions[self._table] = [], ""
        elif tag == "caption":
            self._in_caption = True
        elif tag == "tr" and self._table:
            self.tables[self._table].append([])
        elif tag in ("th", "td") and self._table:
            self._cell = Cell(tag, found.get("class", ""), found.get("scope", ""))
            self.tables[self._table][-1].append(self._cell)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self._cell = None
        elif tag == "table":
            self._table = ""
        elif tag == "section":
            self._section = ""
        elif tag == "caption":
            self._in_caption = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self._cell.text += data
        if self._in_caption:
            self.captions[self._table] += data
        if self._section:
            self.sections[self._section] += data

    def cells(self, stem: str) -> list[list[Cell]]:
        """The rows of a table, without its head and what is drawn in them."""
        return [[cell for cell in row if "picture" not in cell.kind] for row in self.tables[stem][1:]]

    def rows(self, stem: str) -> list[dict[str, str]]:
        """The texts of a table's rows by their headers."""
        names = [cell.text.strip() for cell in self.tables[stem][0] if "picture" not in cell.kind]
        return [
            dict(zip(names, (cell.text.strip() for cell in row), strict=True)) for row in self.cells(stem)
        ]
