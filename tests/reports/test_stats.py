"""The bootstrap, against loops and simulated cells."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from analysis.metrics import ACCEPTED_LENGTH
from analysis.stats import NUM_RESAMPLES, divide, paired_gain, ratio, resample


def simulated(generator: np.random.Generator, num_prompts: int, speed: np.ndarray) -> pd.DataFrame:
    """Prompts whose decoding times follow `speed` with 5 % noise of their own."""
    steps = generator.integers(20, 60, num_prompts)
    emitted = generator.poisson(2.5 * steps)
    seconds = emitted / speed * generator.normal(1, 0.05, num_prompts)
    frame = pd.DataFrame({"num_emitted": emitted, "num_steps": steps, "decode_s": seconds})
    return frame.assign(timed_by="one")


def rates(prompts: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    return prompts.num_emitted, prompts.decode_s


def test_intervals_equal_a_loop_over_resamples() -> None:
    generator = np.random.default_rng(1)
    prompts, baseline = (simulated(generator, 7, np.full(7, speed)) for speed in (80.0, 50.0))
    indices = generator.integers(0, 7, (200, 7))
    counts = np.stack([np.bincount(row, minlength=7) for row in indices]).astype(float)
    alone, gains = [], []
    for row in indices:
        drawn, other = prompts.iloc[row], baseline.iloc[row]
        alone.append(drawn.num_emitted.sum() / drawn.decode_s.sum())
        gains.append(alone[-1] / (other.num_emitted.sum() / other.decode_s.sum()))
    for found, looped in (
        (ratio(*rates(prompts), counts), alone),
        (paired_gain(rates(prompts), rates(baseline), counts), gains),
    ):
        assert [found.lower, found.upper] == pytest.approx(np.quantile(looped, [0.025, 0.975]), rel=1e-12)


def test_intervals_cover_the_truth() -> None:
    """200 cells of 60 prompts: binomial(200, 0.95) has a deviation of 1.5 %; the tolerance is 2.6 of them."""
    generator, counts, covered = np.random.default_rng(3), resample(60, 2000), 0
    for _ in range(200):
        prompts = simulated(generator, 60, np.full(60, 50.0))
        found = ratio(prompts.num_emitted, prompts.num_steps, counts)
        covered += found.lower <= 2.5 <= found.upper
    assert 0.90 <= covered / 200 <= 0.99
    assert ACCEPTED_LENGTH.of(prompts).value == found.value


def test_resamples_are_reproducible_and_whole() -> None:
    counts = resample(5)
    assert counts.shape == (NUM_RESAMPLES, 5) and (counts.sum(1) == 5).all()
    resample.cache_clear()
    assert (counts == resample(5)).all() and resample(1).shape == (0, 1)


def test_ratios_leave_out_resamples_with_nothing_to_divide_by() -> None:
    found = ratio([1, 3], [2, 2])  # the two prompts alone are the extremes of the resamples
    assert (found.value, found.lower, found.upper) == (1.0, 0.5, 1.5)
    assert ratio([1, 0], [2, 0]).value == 0.5 and ratio([1, 0], [2, 0]).lower == 0.5
    assert math.isnan(ratio([0, 0], [0, 0]).value) and math.isnan(ratio([1], [2]).lower)
    nothing = paired_gain(([1, 1], [1, 1]), ([0, 0], [1, 1]))
    assert math.isnan(nothing.value) and math.isnan(nothing.lower)
    assert math.isnan(paired_gain(([1, 1], [0, 0]), ([1, 1], [1, 1])).value)
    assert divide([1, 2], [0, 4])[1] == 0.5 and math.isnan(divide([1, 2], [0, 4])[0])
