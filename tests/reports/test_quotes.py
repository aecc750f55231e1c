"""Numbers in prose come from results/published, or publishing says what is missing."""

import itertools
import re
from pathlib import Path

import pandas as pd
import pytest

from analysis import frontier, quotes
from analysis.audits import METHOD
from analysis.page import headline
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


ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published"
TOY = "toy: toy accepted_length standart\nempty: toy speedup standard\n"
TOY += "lost: none accepted_length standard\n"


@pytest.mark.parametrize(
    ("quote", "line"),
    [
        ("<!--=toy-->3.10<!--/-->", "no row of toy.csv has it (standart)"),
        ("<!--=empty-->3.10<!--/-->", "no row of toy.csv has it (standard)"),
        ("<!--=lost-->3.10<!--/-->", "'none', whose CSV cannot be read"),
        ("<!--=nobody-->3.10<!--/-->", "'nobody', which docs/numbers.yaml does not have"),
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
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "numbers.yaml").write_text(TOY)
    (tmp_path / "README.md").write_text(quote)
    with pytest.raises(InvalidInput) as caught:
        quotes.renew(tmp_path)
    assert str(caught.value).startswith("README.md quotes ") and line in str(caught.value)
    assert (tmp_path / "README.md").read_text() == quote


def test_an_empty_block_gets_the_table_that_it_names(tmp_path):
    """A block without a table once stayed empty, and its page said nothing."""
    folder = tmp_path / "results" / "published" / "embedded"
    folder.mkdir(parents=True)
    table = "| a |\n|---|\n| 1 |"
    (folder / "toy.md").write_text(f"**Toy.**\n\n{table}\n\nMade by nobody.\n")
    (tmp_path / "README.md").write_text("<!-- toy -->\n\n<!-- /toy -->\n")
    quotes.renew(tmp_path)
    assert (tmp_path / "README.md").read_text() == f"<!-- toy -->\n{table}\n<!-- /toy -->\n"


def test_paragraphs_that_begin_alike_are_quoted_in_their_order(tmp_path):
    """Defect: each of them became the last one, as of the sentences about two temperatures."""
    folder = tmp_path / "results" / "published" / "embedded"
    folder.mkdir(parents=True)
    (folder / "toy.md").write_text("A pair, T = 1: 2.\n\nA pair, T = 0.6: 3.\n")
    (tmp_path / "README.md").write_text("<!-- toy -->\nA pair, x\n\nA pair, x\n<!-- /toy -->\n")
    quotes.renew(tmp_path)
    assert (tmp_path / "README.md").read_text().splitlines()[1::2] == [
        "A pair, T = 1: 2.",
        "A pair, T = 0.6: 3.",
    ]


def test_a_claim_has_one_name(tmp_path):
    (tmp_path / "docs").mkdir()
    path = tmp_path / "docs" / "numbers.yaml"
    path.write_text("one: toy speedup a b\ntwo: toy speedup b a\n")
    with pytest.raises(InvalidInput, match=r"numbers.yaml: two and one are one claim"):
        quotes.claims(tmp_path)


def quoted():
    """Each name of docs/numbers.yaml with the pages that quote it."""
    pages = {name: [] for name in quotes.claims(ROOT)}
    for page in quotes.pages(ROOT):
        for match in quotes.NUMBERS.finditer(page.read_text(encoding="utf-8")):
            pages[match[2]].append(page)
    return pages


def test_one_claim_has_one_number():
    """Cells of one method, tree and data set are quoted from one artefact alone.

    Others may have measured other prompts; but an artefact's own page may quote its own.
    """
    names, artefacts = quotes.claims(ROOT), {}
    for name, pages in quoted().items():
        assert pages, f"{name} is quoted nowhere"
        artefact, quantity, *words = names[name].split()
        if all(page.stem == artefact for page in pages):
            continue
        for rows in quotes.chosen(names[name], PUBLISHED):
            keys = [key for key in ("pair", *METHOD, "dataset", "temperature") if key in rows]
            cells = frozenset(rows[keys].itertuples(index=False, name=None))
            place = (quantity, "bounds" in words, tuple(keys), cells)
            other = artefacts.setdefault(place, artefact)
            assert other == artefact, f"{name} is of {artefact}, another claim of it of {other}"


def test_titles_and_headline_say_the_numbers_that_readme_says():
    """From the same rows: the best exact gain, and ResiSpec's, at T = 1."""
    folder = PUBLISHED / "embedded"
    frames = {path.stem: pd.read_csv(path) for path in folder.glob("*.csv")}
    frames = {
        name: frames[name].fillna({"verdict": ""})
        for name in ("overview", "field", "levels", "frontier", "table1")
    }
    best, on_tree, resispec = (
        quotes.numbers(f"overview accepted_length_gain {words} 1.0", PUBLISHED)
        for words in (
            "recycled level_optimal chains_121",
            "specinfer level_optimal chains_121",
            "resispec d5b3",
        )
    )
    facts = {fact.label: fact for fact in headline.facts(headline.joined(frames))}
    assert facts["Best gain without a bias seen, T = 1"].value == f"{best}×"
    assert facts["ResiSpec's accepted length over SpecInfer's, d5b3, T = 1"].value == f"{resispec}×"
    assert f"{best} times" in frontier.message(frames["field"])
    searched = "levels accepted_length_gain traversal_optimal best_121 1.0"
    title = frontier.message(frames["frontier"])
    assert f"{quotes.numbers(searched, PUBLISHED)} times" in title
    assert on_tree != best  # what recycled laws give is part of the claim, and of the title
    assert "ecycled laws" in frontier.message(frames["field"])


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
    sourced = "Kept: 3.1 tokens. <!-- from: arithmetic -->\n\n<!--=toy-->3.1<!--/-->\n\n"
    section = (
        "## A\n\n<!-- from: a run -->\n\n| 3.1 |\n\n3 %\n\n## B\n\np < 4 in 3.1 if q > 2\n\n4%\n\n"
    )
    found = unsourced(prose + sourced + section)
    assert found == [prose.strip(), "p < 4 in 3.1 if q > 2", "4%"]
    pages = [*quotes.pages(ROOT), ROOT / "results" / "README.md"]
    for page in pages:
        assert unsourced(page.read_text(encoding="utf-8")) == [], page
