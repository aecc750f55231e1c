"""Quotes: numbers of results/published in README and docs, renewed from its files.

    <!-- frontier_summary -->                 a block: the tables of a page, in their order, and the
    | Tree | Method | ...                     paragraphs that begin like one of the page; other
    prose stays <!-- /frontier_summary -->

    ... <!-- levels accepted_length level_optimal d5b3 1.0,0.6 -->4.1–4.2 and 3.5–3.8<!-- / -->
    tokens

The second form is numbers in a sentence. It names an artefact, a quantity, and labels that choose
rows of the artefact's CSV (pair, data set, temperature, decoder, tree, verifier, part, ...); labels
with commas between them give one text each. A single row gives its value with its interval. Several
rows give the range of their values, or of their intervals with the word `bounds`. The quantity
`verdict` counts the verdicts of audits. An artefact of another profile than embedded is called
PROFILE/ARTEFACT.

    <!-- from: docs/studies/run_spread.csv -->

The third form names the source of numbers that are not quotes: the numbers of its paragraph, or of
its section if it stands right below a heading. tests/reports/test_quotes.py finds numbers without
any of these.
"""

import itertools
import re
from pathlib import Path

import pandas as pd

from analysis import audits
from analysis.metrics import ACCEPTED_LENGTH, METRICS
from analysis.table import Number, Paper
from resispec.errors import InvalidInput, first_line
from resispec.files import write_atomically

BLOCK = re.compile(r"(<!-- ((?:\w+/)?\w+) -->\n)(.*?)(\n<!-- /\2 -->)", re.S)
NUMBERS = re.compile(r"(<!-- ((?:\w+/)?\w+ \w+[^>]*?) -->)(.*?)(<!-- / -->)", re.S)
BOUNDS, VERDICT = "bounds", "verdict"
SPECS = {metric.name: metric.spec for metric in METRICS}
"""quantity -> the format of its numbers; other quantities have two decimals."""


def pages(root: Path) -> list[Path]:
    """The documents of a repository that may quote."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def renew(root: Path) -> list[Path]:
    """Renew the quotes in the documents of a repository; return the documents that changed.

    Raises InvalidInput when a document quotes something that is not published.
    """
    documents = []
    for page in pages(root):
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        try:
            new_text = renewed_text(text, root / "results" / "published")
        except InvalidInput as error:
            raise InvalidInput(f"{page.relative_to(root)} quotes {error}") from error
        if new_text != text:
            write_atomically(page, new_text)
            documents.append(page)
    return documents


def renewed_text(text: str, published: Path) -> str:
    """The text of a document with its quotes renewed from results/published.

    Raises like `renew`.
    """
    text = BLOCK.sub(lambda match: match[1] + block(match[3], match[2], published) + match[4], text)
    return NUMBERS.sub(lambda match: match[1] + numbers(match[2], published) + match[4], text)


def block(text: str, artefact: str, published: Path) -> str:
    """A block renewed from an artefact's page: its tables in order,
    and the paragraphs with equal beginnings.

    A paragraph's beginning is its first two words, or the first alone if it ends with a colon
    ("Profile:"). Raises InvalidInput if the page is not published.
    """
    path = _path(artefact, "md", published)
    if not path.is_file():
        raise InvalidInput(f"{artefact!r}, which is not published")
    page = path.read_text(encoding="utf-8").split("\n\n")
    tables = (part for part in page if part.lstrip().startswith("|"))

    def opening(paragraph: str) -> tuple[str, ...]:
        words = paragraph.split()
        return tuple(words[: 1 if words and words[0].endswith(":") else 2])

    openings = {opening(part): part for part in page}
    parts = [
        next(tables, part) if part.startswith("|") else openings.get(opening(part), part)
        for part in text.split("\n\n")
    ]
    return "\n\n".join(part.strip("\n") for part in parts)


def numbers(query: str, published: Path) -> str:
    """The text of numbers in a sentence: "levels accepted_length level_optimal d5b3 1.0" is
    "4.02–4.21".

    Raises InvalidInput when the query chooses no row.
    """
    artefact, quantity, *words = query.split()
    try:
        frame = pd.read_csv(_path(artefact, "csv", published), dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{artefact!r}, whose CSV cannot be read ({first_line(error)})"
        ) from error
    labels = frame.columns[: frame.columns.get_loc("quantity")]
    frame = frame[frame.quantity == (ACCEPTED_LENGTH.name if quantity == VERDICT else quantity)]
    texts = []
    for choice in itertools.product(*(word.split(",") for word in words if word != BOUNDS)):
        rows = frame[frame.value != ""]
        for label in choice:
            rows = rows[(rows[labels] == label).any(axis=1)]
        if rows.empty:
            raise InvalidInput(
                f"{query!r}, but no row of {artefact}.csv has it ({' '.join(choice)})"
            )
        values, spec = rows[["value", "lower", "upper"]].astype(float), SPECS.get(quantity, ".2f")
        low, high = ("lower", "upper") if BOUNDS in words else ("value", "value")
        if quantity == VERDICT:
            texts.append(audits.counted(rows.verdict[rows.verdict != ""]))
        elif len(values) == 1 and BOUNDS not in words:
            texts.append(str(Number(*values.iloc[0], spec)))
        else:
            texts.append(str(Paper(values[low].min(), values[high].max(), spec)))
    return " and ".join(texts)


def _path(artefact: str, suffix: str, published: Path) -> Path:
    profile, stem = f"embedded/{artefact}".split("/")[-2:]
    return published / profile / f"{stem}.{suffix}"
