"""Engines through arms: verdicts that are published, and the rows of the table."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from referee.engine_arms import RUNS, SMOLLM2, command, same_answers, table_of
from referee.transcripts import Transcript
from resispec.errors import InvalidInput

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "embedded"


def rows_of(*answers, seed=7):
    """A row for each answer, at 1, 4, ... requests at a time."""
    return [
        Transcript((1, 2), answer, seed=seed, concurrency=4**place)
        for place, answer in enumerate(answers)
    ]


def test_only_openvino_with_a_draft_is_biased_and_no_engine_depends_on_its_arm():
    table = pd.read_csv(PUBLISHED / "arms.csv")
    is_openvino = (table.engine == "openvino_genai") & (table["mode"] == "assisted")
    assert set(table.verdict[is_openvino]) == {"biased"}
    assert set(table.verdict[~is_openvino]) == {"no bias seen"}
    assert table.differs_from.isna().all()
    assert (table.tokens >= 1_000).all()
    kinds = table[["engine", "mode", "kind"]].drop_duplicates()
    assert [tuple(row) for row in kinds.values] == [(r.engine, r.mode, r.kind) for r in RUNS]


def test_no_engine_is_biased_behind_thousands_of_tokens():
    table = pd.read_csv(PUBLISHED.parent / "smollm2" / "arms.csv")
    assert list(table.engine.unique()) == [run.engine for run in SMOLLM2]
    assert set(table.verdict) | set(table.of_all) == {"no bias seen"}
    assert set(table.arm) == {"prompts as they are", "4096 tokens of context"}
    assert (table.tokens >= 1_000).all()


def test_equal_answers_are_counted_by_prompt_and_seed():
    rows = rows_of((3, 4), (3, 4), (3, 5))
    shares = [same_answers("concurrency", {"concurrency": load}, rows) for load in (1, 4, 16)]
    assert shares == [1, 1, 0]


def test_draws_of_their_own_have_no_equal_answers():
    rows = [replace(row, seed=None) for row in rows_of((3,), (3,))]
    assert same_answers("concurrency", {"concurrency": 4}, rows) is None
    assert same_answers("turn", {"turn": 1}, rows_of((3,))) is None


@pytest.mark.slow
def test_a_command_that_fails_is_named_with_its_reason():
    with pytest.raises(InvalidInput, match="^resispec judge none.jsonl .* with 1: .* be read"):
        command(["resispec", "judge", "none.jsonl", "--target", "embedded"])


def test_the_arms_that_alone_are_biased_are_named():
    row = {"engine": "e", "mode": "plain", "kind": "turn", "arms": "turns", "tokens": 9}
    row |= {"of_all": "biased", "differs_from": None, "undecided_from": "turn 1"}
    row |= {"same_answers": None}
    row |= {"shown_from": 0.1, "all_shown_from": 0.2}
    arms = [("turn 1", "no bias seen"), ("later turns", "biased")]
    frame = pd.DataFrame([row | {"arm": arm, "verdict": verdict} for arm, verdict in arms])
    assert "| biased: later turns | undecided |" in " ".join(table_of(frame).split())
