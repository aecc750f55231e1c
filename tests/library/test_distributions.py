"""Draws against the laws that they claim. Chi-square tests are seeded; fresh seeds fail at 1e-4."""

import pytest
import torch
from scipy.stats import chisquare

from resispec.distributions import choose, draw, draw_one, null_mass

pytestmark = pytest.mark.numerics

FALSE_ALARM = 1e-4


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def test_draw_follows_unnormalised_weights(generator):
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 6.0, 0.0])
    counts = torch.bincount(draw(weights, 20000, generator), minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert chisquare(counts[[1, 3, 4]], [6000, 2000, 12000]).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0], [float("nan"), 1.0], [1.0, float("inf")], [1.2, -0.2]]
)
def test_draw_one_refuses_a_law_that_is_none(weights, generator):
    with pytest.raises(FloatingPointError, match="mass"):
        draw_one(torch.tensor(weights), generator)


def test_choose_follows_its_chances(generator):
    chances = torch.tensor([0.2, 0.0, 0.5])
    counts = torch.bincount(
        torch.tensor([choose(chances, generator) for _ in range(4000)]), minlength=4
    )
    assert counts[1] == 0
    assert chisquare(counts[[0, 2, 3]], [800, 2000, 1200]).pvalue > FALSE_ALARM
    asked = map(torch.tensor, [0.0, 1.0, float("nan")])
    assert choose(asked, generator) == 1 and torch.isnan(next(asked))
    for broken in ([float("nan"), 0.5], [1.2], [-0.1, 0.5], [float("inf")], [0.6, 0.6]):
        with pytest.raises(FloatingPointError, match="cannot choose"):
            for _ in range(100):  # the second of two is not always asked for
                choose(torch.tensor(broken), generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tolerances_are_those_of_the_precision(dtype, generator):
    """Sums of 1 as float32 gives them are none in float64."""
    for chances in ([1.00005], [-5e-5]):
        if dtype == torch.float32:
            choose(torch.tensor(chances, dtype=dtype), generator)
        else:
            with pytest.raises(FloatingPointError, match="cannot choose"):
                choose(torch.tensor(chances, dtype=dtype), generator)
    short = torch.tensor([0.5, 0.5 - 4e-6], dtype=dtype)
    assert float(null_mass(short)) == (0 if dtype == torch.float32 else pytest.approx(4e-6))
    weights = torch.tensor([0.5, 0.50005], dtype=dtype)
    draw_one(weights, generator)
    with pytest.raises(
        FloatingPointError, match="allowed: a mass that is finite and 1 within 1e-09"
    ):
        draw_one(weights, generator, 1e-9)
