"""The tokens that are going to be asked for: their number, and what it was measured to show."""

import csv
from pathlib import Path

from referee.planned import SHIFT, TAKES, planned_lines
from resispec.sampling import Sampling

POWER = Path(__file__).parents[2] / "results/published/embedded/transcripts_power.csv"


def test_the_tokens_that_a_shift_takes_are_the_measured_ones():
    with POWER.open() as file:
        [row] = [row for row in csv.DictReader(file) if row["engine"].endswith("TV .05")]
    assert SHIFT == 0.05
    assert [float(row["bet_tokens"]), float(row["tokens_without"])] == [*TAKES.values()]


def test_too_few_tokens_are_said_to_be_too_few():
    [line] = planned_lines(Sampling(max_new_tokens=64), 100, 1)
    assert line.startswith("asks for at most 6,400 tokens (100 prompts x 64); on the embedded pair")
    assert line.endswith("from a total variation of 0.018 with the draft's model, 0.044 without")
    first, warning = planned_lines(Sampling(max_new_tokens=64), 12, 2)
    assert first.startswith("asks for at most 1,536 tokens (12 prompts x 64 x 2 arms); ")
    assert "takes 1,000 tokens of each arm: --num-prompts 16 or more" in warning
    greedy, warning = planned_lines(Sampling(temperature=0, max_new_tokens=9), 2, 1)
    assert greedy == "asks for at most 18 tokens (2 prompts x 9)"
    assert "takes 1,000 tokens: --num-prompts 112 or more" in warning
