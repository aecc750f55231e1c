"""The bootstrap, against a loop, and ratios with nothing to divide by."""

import math

import numpy as np
import pytest

from analysis.stats import divide, paired_gain, ratio


def test_intervals_equal_a_loop_over_resamples(monkeypatch):
    generator = np.random.default_rng(1)
    own, baseline = ((generator.integers(20, 60, 7), generator.uniform(1, 2, 7)) for _ in range(2))
    indices = generator.integers(0, 7, (200, 7))
    counts = np.stack([np.bincount(row, minlength=7) for row in indices]).astype(float)
    monkeypatch.setattr("analysis.stats.resample", lambda _: counts)
    alone, gains = [], []
    for row in indices:
        rate, other = (
            emitted[row].sum() / seconds[row].sum() for emitted, seconds in (own, baseline)
        )
        alone.append(rate)
        gains.append(rate / other)
    for found, looped in ((ratio(*own), alone), (paired_gain(own, baseline), gains)):
        assert [found.lower, found.upper] == pytest.approx(
            np.quantile(looped, [0.025, 0.975]), rel=1e-12
        )


def test_ratios_leave_out_resamples_with_nothing_to_divide_by():
    found = ratio([1, 3], [2, 2])  # the two prompts alone are the extremes of the resamples
    assert (found.value, found.lower, found.upper) == (1.0, 0.5, 1.5)
    assert ratio([1, 0], [2, 0]).value == 0.5 and ratio([1, 0], [2, 0]).lower == 0.5
    assert math.isnan(ratio([0, 0], [0, 0]).value) and math.isnan(ratio([1], [2]).lower)
    nothing = paired_gain(([1, 1], [1, 1]), ([0, 0], [1, 1]))
    assert math.isnan(nothing.value) and math.isnan(nothing.lower)
    assert math.isnan(paired_gain(([1, 1], [0, 0]), ([1, 1], [1, 1])).value)
    assert divide([1, 2], [0, 4])[1] == 0.5 and math.isnan(divide([1, 2], [0, 4])[0])
