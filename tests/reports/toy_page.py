"""A page made of toy cells, and its parts as a reader finds them in the HTML."""

import re
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

from tests.toy_cells import (
    AUTOREGRESSIVE,
    METHODS,
    SCALING_ROWS,
    decay_rows,
    kl_rows,
    make_audit,
    make_cell,
    repeated,
    rows_of,
    save,
    write_plan,
)

REASON = "out of <b>memory</b> & more"


def write_results(results: Path) -> None:
    """Plans and cells of table 1 and others: one data set is complete and audited.

    Of the other data set one cell failed and one is missing. The rows of the standard rule audit as
    exact, those of ResiSpec as biased.
    """
    cells = [
        save(make_cell(results, method), repeated(rows_of(measured)))
        for method, measured in METHODS.items()
    ]
    audits = [make_audit(cells[1], 600, 0.0), make_audit(cells[2], 600, 0.2)]
    other = [make_cell(results, method, "embedded_reference") for method in METHODS]
    save(other[0], repeated(rows_of(AUTOREGRESSIVE)))
    save(other[1], None, "failed", REASON)
    write_plan(results, "table1", [*cells, *audits, *other])
    kl = [
        save(make_cell(results, method, temperature=0.6), kl_rows(found))
        for method, found in (
            ("standard", [[0.0, 0.1], [0.05, 0.0]]),
            ("resispec", [[0.9, 0.8], [0.7, 0.9]]),
        )
    ]
    write_plan(results, "table4", kl)
    write_plan(
        results, "table5", [save(make_cell(results, "standard", temperature=0.5), SCALING_ROWS)]
    )
    selected, tested = [[6.0, 0.9]] * 2, [[10.0, 4.0]] * 2
    decay = save(make_cell(results, "standard", temperature=0.4), decay_rows(selected, tested))
    write_plan(results, "figure1", [decay])
    write_plan(results, "frontier", [*cells, *audits], part="d5b3")


def parse(source: str) -> Element:
    """A page without its styles and its script. Raises ParseError for tags that are not closed."""
    plain = re.sub(r"<(script|style)>.*?</\1>", "", source, flags=re.DOTALL)
    return fromstring(re.sub(r"<((?:meta|link|img|input)\b[^>]*)>", r"<\1/>", plain))


def text(element: Element | None) -> str:
    """All text in an element, in one line."""
    return " ".join(" ".join(element.itertext()).split())


def section(page: Element, name: str) -> str:
    """The text of a section."""
    return text(page.find(f".//section[@id='{name}']"))


def rows(page: Element, stem: str) -> list[dict[str, str]]:
    """The texts of a table's rows by their headers."""
    names, *lines = (
        [text(cell) for cell in row] for row in page.find(f".//table[@id='data-{stem}']").iter("tr")
    )
    return [dict(zip(names, line, strict=True)) for line in lines]
