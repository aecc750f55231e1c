"""The page of what a bias takes is that of its published numbers."""

from pathlib import Path

import pandas as pd
import pytest

from referee.transcripts_power import main, page_of

STEM = Path(__file__).parents[2] / "results" / "published" / "embedded" / "transcripts_power"
BEFORE = "python docs/studies/transcripts_power.py"  # the command's name when it was published


def test_the_published_page_is_that_of_its_numbers():
    page = page_of(pd.read_csv(STEM.with_suffix(".csv")))
    assert (
        page.replace("python -m referee.transcripts_power", BEFORE)
        == STEM.with_suffix(".md").read_text()
    )


def test_no_rows_are_refused_in_one_line(capsys):
    with pytest.raises(SystemExit):
        main(["--prompts", "0"])
    assert "allowed: whole numbers from 1" in capsys.readouterr().err
