"""Pages of what a bias takes are those of their published numbers, which reach their goals."""

from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from referee import bets_power, engine_arms, transcripts_power

PROFILES = Path(__file__).parents[2] / "results" / "published"
PUBLISHED = PROFILES / "embedded"


@pytest.mark.parametrize(
    ("stem", "page_of"),
    [
        ("embedded/transcripts_power", transcripts_power.page_of),
        ("embedded/bets_power", bets_power.page_of),
        ("embedded/arms", partial(engine_arms.page_of, profile="embedded")),
        ("smollm2/arms", partial(engine_arms.page_of, profile="smollm2")),
    ],
)
def test_the_published_page_is_that_of_its_numbers(stem, page_of):
    numbers = pd.read_csv(PROFILES / f"{stem}.csv")
    assert page_of(numbers) == (PROFILES / f"{stem}.md").read_text()


def test_bets_find_what_they_should_and_bounds_hold():
    table = pd.read_csv(PUBLISHED / "bets_power.csv").set_index("engine")
    rows, bounds = table[table.held.isna()], table[table.held.notna()]
    assert rows.nine_in_ten["toward the draft, TV .02"] <= 4_000
    assert rows.nine_in_ten["toward the draft, TV .01"] <= 14_000
    assert rows.nine_in_ten["one stray token in 750, 49,152 ids"] <= 10_000
    assert rows.found["exact"] <= 2 and rows.audits["exact"] == 400
    assert len(bounds) == 3 and (bounds.held >= 0.95 * bounds.audits).all()
    assert (bounds.audits == 1_000).all()


@pytest.mark.parametrize("module", [transcripts_power, bets_power])
def test_no_rows_are_refused_in_one_line(module, capsys):
    with pytest.raises(SystemExit):
        module.main(["--prompts", "0"])
    assert "from 1" in capsys.readouterr().err
