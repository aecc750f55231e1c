"""Numbers in the prose of README and docs come from results/published,
or publishing says what is missing.
"""

import itertools
import re
from pathlib import Path

import pytest

from analysis import quotes
from resispec.errors import InvalidInput

SOURCE = re.compile(r"<!-- from: (\S.*?) -->", re.S)
NO_PROSE = re.compile(
    r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|</?[a-z][^>\n]*>"  # code, targets of links, HTML
    # temperatures, arXiv, intervals
    r"|\bT ?= ?0?\.\d+(?:,? (?:and|or) 0?\.\d+)?|\b\d{4}\.\d{5}\b|\b95 ?%"
    r"|(?:Python|torch|transformers|Apache)[ -]\d+\.\d+|\b\d+(?:\.\d+){2,}",  # versions
    re.S,
)
FENCED = re.compile(r"^ *```.*?^ *```", re.S | re.M)
MEASURED = re.compile(r"(?<![\w.])\d*\.\d++(?![BM]\b)|\b\d+ ?%")


@pytest.mark.parametrize(
    ("quote", "line"),
    [
        (
            "<!-- toy accepted_length standart -->3.10<!-- / -->",
            "no row of toy.csv has it (standart)",
        ),
        ("<!-- toy speedup standard -->3.10<!-- / -->", "no row of toy.csv has it (standard)"),
        (
            "<!-- none accepted_length standard -->3.10<!-- / -->",
            "'none', whose CSV cannot be read",
        ),
        ("<!-- none -->\ntext\n<!-- /none -->", "'none', which is not published"),
    ],
)
def test_what_is_not_published_cannot_be_quoted(tmp_path, quote, line):
    """Numbers that are published are renewed by test_published.py and slow/test_readme.py."""
    folder = tmp_path / "results" / "published" / "embedded"
    folder.mkdir(parents=True)
    (folder / "toy.csv").write_text(
        "verifier,quantity,value\nstandard,accepted_length,3.1\nstandard,speedup,"
    )
    (tmp_path / "README.md").write_text(quote)
    with pytest.raises(InvalidInput) as caught:
        quotes.renew(tmp_path)
    assert str(caught.value).startswith("README.md quotes ") and line in str(caught.value)
    assert (tmp_path / "README.md").read_text() == quote


def unsourced(text):
    """The paragraphs of a document with decimals or percentages whose source nothing names."""
    text = FENCED.sub("", quotes.NUMBERS.sub("", quotes.BLOCK.sub("", text)))
    paragraphs, covered = list[str](), False
    for before, paragraph in itertools.pairwise(["", *re.split(r"\n\s*\n", text)]):
        is_heading, starts_section = paragraph.startswith("#"), before.startswith("#")
        if is_heading or (starts_section and paragraph.startswith("<!-- from: ")):
            covered = not is_heading
        if (
            not covered
            and not SOURCE.search(paragraph)
            and MEASURED.search(NO_PROSE.sub("", paragraph))
        ):
            paragraphs.append(paragraph.strip())
    return paragraphs


def test_numbers_in_prose_have_a_source():
    prose = "Kept: 3.1 tokens at T = 0.6, in 95 % intervals (arXiv 2608.24411), with `2.0`.\n\n"
    sourced = "Kept: 3.1 tokens. <!-- from: arithmetic -->\n\n<!-- toy x -->3.1<!-- / -->\n\n"
    section = (
        "## A\n\n<!-- from: a run -->\n\n| 3.1 |\n\n3 %\n\n## B\n\np < 4 in 3.1 if q > 2\n\n4%\n\n"
    )
    found = unsourced(prose + sourced + section)
    assert found == [prose.strip(), "p < 4 in 3.1 if q > 2", "4%"]
    root = Path(__file__).parents[2]
    pages = [*quotes.pages(root), root / "results" / "README.md"]
    for page in pages:
        assert unsourced(page.read_text(encoding="utf-8")) == [], page
