"""The bootstrap, against a loop, and ratios with nothing to divide by."""

import math

import numpy as np
import pytest

from analysis.stats import ceiling, divide, few_prompts, paired_gain, ratio


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
    found = ratio([1] * 8, [2] * 4 + [0] * 4)
    assert found.value == 1.0 and found.lower > 0.5 and np.isfinite(found.upper)
    halves = ratio([1] + [0] * 7, [2] + [0] * 7)  # only resamples with the first prompt count
    assert (halves.value, halves.lower, halves.upper) == (0.5, 0.5, 0.5)
    assert math.isnan(ratio([0, 0], [0, 0]).value) and math.isnan(ratio([1], [2]).lower)
    nothing = paired_gain(([1, 1], [1, 1]), ([0, 0], [1, 1]))
    assert math.isnan(nothing.value) and math.isnan(nothing.lower)
    assert math.isnan(paired_gain(([1, 1], [0, 0]), ([1, 1], [1, 1])).value)
    assert divide([1, 2], [0, 4])[1] == 0.5 and math.isnan(divide([1, 2], [0, 4])[0])


def test_fewer_than_eight_prompts_have_a_value_and_no_interval():
    """Of ratios, gains and ceilings; resamples of few prompts are drawn too narrow."""
    few, enough = ([3, 4, 5, 4, 3, 4, 5][:count] + [2] * (count - 7) for count in (7, 8))
    logs = [[[0.1, 0.2]] * 2] * 8
    for count, values in ((7, few), (8, enough)):
        ones = [1] * count
        found = (
            ratio(values, ones),
            paired_gain((values, ones), (ones, ones)),
            ceiling(logs[:count], logs[:count]),
        )
        for interval in found:
            assert interval.value > 1 and math.isnan(interval.lower) == (count == 7)
    assert few_prompts([7, 20]) and not few_prompts([8, 20])
