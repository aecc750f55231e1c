"""Tests of `assert_exact_sampler` itself: its negative control, its false alarms, what it can see."""

import math

import pytest
import torch
from accounts import law as counts
from toy_kernels import Kernel, accept_one

from resispec.errors import InvalidInput
from resispec.testing import assert_exact_sampler
from resispec.testing.control import Biased
from resispec.testing.laws import laws_for
from resispec.testing.options import SamplerOptions
from resispec.testing.stage import Tokens
from resispec.testing.statistics import _places, by_place, compared, smallest_bias
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
    """A blind share moves exactly that much mass from one half of the tokens to the other: 40 seeds."""
    p, q = torch.full((16,), 1 / 16), torch.tensor([1.9 / 16] * 8 + [0.1 / 16] * 8)
    level, bias = 1e-4, smallest_bias(2000, 1e-4)
    hits = 0
    for seed in range(40):
        options = SamplerOptions(samples=2000, seed=seed, draws="iid")
        (trial,) = trials_of(options, p, q)
        tokens, _ = trial._play(Biased(trial.stage, bias / 0.45, trial.ours), 0)
        places = [item for item in trial._outcome(tokens).findings if item.what == "places, by falling p / q"]
        hits += places[0].chi_square.p_value <= level
    assert 29 <= hits < 40  # of 40 with probability .9 each: 36, and 29 is 4 standard errors below


# The parts, by hand


def test_rare_cells_are_counted_together_and_nothing_is_lost():
    """100 tokens, 60, 30, 6 and 4 expected: the last two make a cell; rarer ones join the smallest."""
    for law, cells in (([0.6, 0.3, 0.06, 0.04], [60, 30, 10]), ([0.6, 0.35, 0.03, 0.02], [60, 40])):
        found = compared(counts(50, 30, 15, 5), counts(*law))
        assert found.expected.tolist() == pytest.approx(cells) and float(found.found.sum()) == 100
    whole = compared(counts(50, 50), counts(0.6, 0.4))
    by_hand = 2 * (50 * math.log(50 / 60) + 50 * math.log(50 / 40))
    assert whole.statistic == pytest.approx(by_hand / (1 + (1 / 0.6 + 1 / 0.4 - 1) / 600), rel=1e-6)
    assert whole.errors.tolist() == pytest.approx([-10 / math.sqrt(24), 10 / math.sqrt(24)], rel=1e-6)


def test_the_mean_place_by_hand():
    """100 places at .6: 10 above the mean of their sum, whose variance is 100 / 12."""
    counted, mean = by_place(torch.full((100,), 0.6, dtype=torch.float64), "by p")
    assert mean.chi_square.statistic == pytest.approx(12) and mean.chi_square.degrees == 1
    assert counted.chi_square.degrees == 7 and counted.worst.found == 100
    assert "from 4/8 to 5/8" in counted.worst.name


@pytest.mark.parametrize("vocab", [6, 16])
def test_places_by_token_are_those_of_the_row_that_the_sampler_saw(vocab):
    laws = laws_for(vocab, ("random",), torch.float64, torch.Generator().manual_seed(0))
    previous, token = torch.arange(vocab), torch.arange(vocab).flip(0)
    place = laws.place(1, previous)
    tokens = Tokens(torch.ones_like(token), *place, laws.columns(place, token))
    rows = laws.rows(laws.target, place)
    below = (rows.cumsum(1) - rows).gather(1, token[:, None])[:, 0]
    nothing = torch.zeros(vocab, dtype=torch.float64)
    assert _places(laws, tokens, "token", nothing).tolist() == pytest.approx(below.tolist(), abs=1e-9)
    chance = rows.gather(1, token[:, None])[:, 0]
    before = torch.where(rows > chance[:, None], rows, 0.0).sum(1)
    assert _places(laws, tokens, "p", nothing).tolist() == pytest.approx(before.tolist(), abs=1e-9)
