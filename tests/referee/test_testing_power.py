"""Tests of `assert_exact_sampler` itself: its negative control, its false alarms, what it can see."""

import math

import pytest
import torch
from toy_kernels import Kernel, accept_one

from resispec.errors import InvalidInput
from resispec.testing import assert_exact_sampler
from resispec.testing.control import Biased
from resispec.testing.options import SamplerOptions
from resispec.testing.statistics import smallest_bias
from resispec.testing.trial import trials_of


def test_too_few_samples_are_no_test():
    with pytest.raises(AssertionError, match="was not tested: a sampler with a bias of 0.05 passes as well"):
        assert_exact_sampler(Kernel(), samples=200, vocabularies=(6,))
    report = assert_exact_sampler(Kernel(), samples=200, vocabularies=(6,), negative_control=False)
    assert report.smallest_bias > 0.1


def test_nothing_can_be_found_where_p_is_q():
    p = torch.full((4,), 0.25)
    with pytest.raises(InvalidInput, match="no token that the target allows is drafted too often"):
        assert_exact_sampler(accept_one, p, p, samples=100)


def p_values(share, seed, samples, vocabularies):
    """Of all statistics of the control with this share of blind acceptance."""
    options = SamplerOptions(samples=samples, seed=seed, vocabularies=vocabularies)
    found = []
    for trial in trials_of(options, None, None):
        tokens, _ = trial._play(Biased(trial.stage, share, trial.ours), 0)
        found += [
            item.chi_square.p_value for item in trial._outcome(tokens).findings if item.chi_square.degrees
        ]
    return found


def test_false_alarms_are_as_rare_as_stated():
    """60 seeds of an exact sampler: 2,000 dependent p-values are as uniform as 500 independent ones."""
    found = torch.tensor([p for seed in range(60) for p in p_values(0.0, seed, 800, (6, 16))])
    for level in (0.5, 0.1, 0.02):
        share = float((found <= level).double().mean())
        assert abs(share - level) < 4 * math.sqrt(level * (1 - level) / 500)
    assert found.min() > 1e-6


def test_the_smallest_bias_is_found_nine_times_of_ten():
    """A blind share that moves exactly that much mass, toward a draft that is far away: 40 seeds."""
    p, q = torch.tensor([0.9] + [0.1 / 15] * 15), torch.tensor([0.1] + [0.9 / 15] * 15)
    level, bias = 1e-4, smallest_bias(2000, 1e-4)
    hits = 0
    for seed in range(40):
        options = SamplerOptions(samples=2000, seed=seed, draws="iid")
        (trial,) = trials_of(options, p, q)
        tokens, _ = trial._play(Biased(trial.stage, bias / 0.8, trial.ours), 0)
        places = [item for item in trial._outcome(tokens).findings if item.what == "places, by falling p / q"]
        hits += places[0].chi_square.p_value <= level
    assert hits >= 29  # of 40 with probability .9 each: 36, and 29 is 4 standard errors below
