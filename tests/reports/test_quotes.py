"""Numbers in the prose of README and docs come from results/published, or publishing says what is missing."""

from pathlib import Path

import pytest

from analysis import quotes
from resispec.errors import InvalidInput

HEADER = "temperature,tree,verifier,quantity,value,lower,upper,verdict\n"
ROWS = """1.0,d5b3,standard,accepted_length,3.1,3.0,3.2,no bias seen
1.0,d5b3,resispec,accepted_length,4.9,4.8,5.0,biased
1.0,best_121,standard,accepted_length,3.25,3.1,3.4,no bias seen
0.6,d5b3,standard,accepted_length,2.9,2.8,3.0,undecided
0.6,d5b3,standard,tokens_per_s,120.0,110.0,130.0,undecided
0.6,d5b3,standard,speedup,,,,undecided
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "published" / "embedded"
    folder.mkdir(parents=True)
    (folder / "toy.csv").write_text(HEADER + ROWS)
    return tmp_path


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("accepted_length standard 1.0", "3.10–3.25"),
        ("accepted_length standard 1.0 bounds", "3.00–3.40"),
        ("accepted_length standard d5b3 1.0,0.6", "3.10 [3.00, 3.20] and 2.90 [2.80, 3.00]"),
        ("tokens_per_s standard", "120.0 [110.0, 130.0]"),
        ("verdict 1.0", "no bias seen (2 of 3), biased (1 of 3)"),
    ],
)
def test_numbers_are_those_of_the_rows(root: Path, query: str, text: str) -> None:
    page = root / "README.md"
    page.write_text(f"It has\n<!-- toy {query} -->old<!-- / --> tokens.\n")
    assert quotes.renew(root) == [page] and quotes.renew(root) == []
    assert page.read_text() == f"It has\n<!-- toy {query} -->{text}<!-- / --> tokens.\n"


@pytest.mark.parametrize(
    ("quote", "line"),
    [
        ("<!-- toy accepted_length standart -->3.10<!-- / -->", "no row of toy.csv has it (standart)"),
        ("<!-- toy speedup standard -->3.10<!-- / -->", "no row of toy.csv has it (standard)"),
        ("<!-- none accepted_length standard -->3.10<!-- / -->", "'none', whose CSV cannot be read"),
        ("<!-- none -->\ntext\n<!-- /none -->", "'none', which is not published"),
    ],
)
def test_what_is_not_published_cannot_be_quoted(root: Path, quote: str, line: str) -> None:
    (root / "README.md").write_text(quote)
    with pytest.raises(InvalidInput) as caught:
        quotes.renew(root)
    assert str(caught.value).startswith("README.md quotes ") and line in str(caught.value)
    assert (root / "README.md").read_text() == quote
