"""Quotes: numbers of results/published in README and docs, renewed from its files.

    <!-- overview_summary -->     a block: the tables of a page, in their order, and the paragraphs
    | Method | ...                that begin like one of the page; other prose stays
    <!-- /overview_summary -->

    ... <!--=gain_levels-->1.88–1.91 and 1.58–1.78<!--/--> times as many

The second form is numbers in a sentence, by the name that docs/numbers.yaml gives them:

    gain_levels: levels accepted_length_gain level_optimal best_121 1.0,0.6

There stand an artefact, a quantity, and labels that choose rows of the artefact's CSV (pair, data
set, temperature, decoder, tree, verifier, part, ...); labels with commas between them give one text
each. A single row gives its value with its interval. Several rows give the range of their values,
or of their intervals with the word `bounds`. The quantity `verdict` counts the verdicts of audits.
An artefact of another profile than embedded is called PROFILE/ARTEFACT.

    <!-- from: docs/studies/run_spread.csv -->

The third form names the source of numbers that are not quotes: the numbers of its paragraph, or of
its section if it stands right below a heading. tests/reports/test_quotes.py finds numbers without
any of these.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import yaml

from analysis import audits
from analysis.metrics import ACCEPTED_LENGTH, METRICS
from analysis.table import Number, Paper
from resispec.errors import InvalidInput, first_line
from resispec.files import write_atomically

BLOCK = re.compile(r"(<!-- ((?:\w+/)?\w+) -->\n)(.*?)(\n<!-- /\2 -->)", re.S)
NUMBERS = re.compile(r"(<!--=(\w+)-->)(.*?)(<!--/-->)", re.S)
CLAIMS = Path("docs") / "numbers.yaml"
"""The file of names, in a repository."""
BOUNDS, VERDICT = "bounds", "verdict"
SPECS = {metric.name: metric.spec for metric in METRICS}
"""quantity -> the format of its numbers; other quantities have two decimals."""


def pages(root: Path) -> list[Path]:
    """The documents of a repository that may quote."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def renew(root: Path) -> list[Path]:
    """Renew the quotes in the documents of a repository; return the documents that changed.

    Raises InvalidInput when a document quotes something that is not published, or by a name that
    docs/numbers.yaml does not have.
    """
    documents, names = [], claims(root)
    for page in pages(root):
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        try:
            new_text = renewed_text(text, root / "results" / "published", names)
        except InvalidInput as error:
            raise InvalidInput(f"{page.relative_to(root)} quotes {error}") from error
        if new_text != text:
            write_atomically(page, new_text)
            documents.append(page)
    return documents


def claims(root: Path) -> dict[str, str]:
    """The claims of a repository by name, from its docs/numbers.yaml; empty without one.

    Raises InvalidInput for a claim that has two names.
    """
    path = root / CLAIMS
    if not path.is_file():
        return {}
    names = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    by_claim: dict[frozenset[str], str] = {}
    for name, claim in names.items():
        other = by_claim.setdefault(frozenset(claim.split()), name)
        if other != name:
            raise InvalidInput(f"{CLAIMS}: {name} and {other} are one claim; allowed: one name")
    return names


def renewed_text(text: str, published: Path, names: Mapping[str, str]) -> str:
    """The text of a document with its quotes renewed from results/published.

    names: name -> claim. Raises like `renew`.
    """

    def number(match: re.Match[str]) -> str:
        if match[2] not in names:
            raise InvalidInput(f"{match[2]!r}, which {CLAIMS} does not have")
        return match[1] + numbers(names[match[2]], published) + match[4]

    text = BLOCK.sub(lambda match: match[1] + block(match[3], match[2], published) + match[4], text)
    return NUMBERS.sub(number, text)


def block(text: str, artefact: str, published: Path) -> str:
    """A block renewed from an artefact's page: tables in order, paragraphs with equal beginnings.

    A paragraph's beginning is its first two words, or the first alone if it ends with a colon
    ("Profile:"); of several that begin alike the first is quoted first. A block in which nothing
    stands yet gets the page's first table. Raises InvalidInput if the page is not published.
    """
    path = _path(artefact, "md", published)
    if not path.is_file():
        raise InvalidInput(f"{artefact!r}, which is not published")
    page = path.read_text(encoding="utf-8").split("\n\n")
    tables = (part for part in page if part.lstrip().startswith("|"))

    def opening(paragraph: str) -> tuple[str, ...]:
        words = paragraph.split()
        return tuple(words[: 1 if words and words[0].endswith(":") else 2])

    beginning = defaultdict[tuple[str, ...], list[str]](list)
    for part in page:
        beginning[opening(part)].append(part)
    found = {words: iter(paragraphs) for words, paragraphs in beginning.items()}
    parts = [
        next(tables, part)
        if part.startswith("|")
        else next(found.get(opening(part), iter(())), part)
        for part in (text if text.strip() else "|").split("\n\n")
    ]
    return "\n\n".join(part.strip("\n") for part in parts)


def numbers(claim: str, published: Path) -> str:
    """The text of a claim: "levels accepted_length level_optimal d5b3 1.0" is "4.02–4.21".

    Raises InvalidInput when it chooses no row.
    """
    _, quantity, *words = claim.split()
    spec = SPECS.get(quantity, ".2f")
    texts = []
    for rows in chosen(claim, published):
        values = rows[["value", "lower", "upper"]].astype(float)
        low, high = ("lower", "upper") if BOUNDS in words else ("value", "value")
        if quantity == VERDICT:
            texts.append(audits.counted(rows.verdict[rows.verdict != ""]))
        elif len(values) == 1 and BOUNDS not in words:
            texts.append(str(Number(*values.iloc[0], spec)))
        else:
            texts.append(str(Paper(values[low].min(), values[high].max(), spec)))
    return " and ".join(texts)


def chosen(claim: str, published: Path) -> list[pd.DataFrame]:
    """The rows of a claim, a frame for each of its texts. Raises InvalidInput for one without."""
    artefact, quantity, *words = claim.split()
    try:
        frame = pd.read_csv(_path(artefact, "csv", published), dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{artefact!r}, whose CSV cannot be read ({first_line(error)})"
        ) from error
    labels = frame.columns[: frame.columns.get_loc("quantity")]
    frame = frame[frame.quantity == (ACCEPTED_LENGTH.name if quantity == VERDICT else quantity)]
    frames = []
    for choice in itertools.product(*(word.split(",") for word in words if word != BOUNDS)):
        rows = frame[frame.value != ""]
        for label in choice:
            rows = rows[(rows[labels] == label).any(axis=1)]
        if rows.empty:
            raise InvalidInput(
                f"{claim!r}, but no row of {artefact}.csv has it ({' '.join(choice)})"
            )
        frames.append(rows)
    return frames


def _path(artefact: str, suffix: str, published: Path) -> Path:
    profile, stem = f"embedded/{artefact}".split("/")[-2:]
    return published / profile / f"{stem}.{suffix}"
