"""Planted faults that `assert_exact_sampler` finds, its control, its false alarms and its power."""

import math
import re

import pytest
import torch

from referee.testing import assert_exact_sampler
from referee.testing.counts import Cells, count_tests, counted, smallest_bias, token_cells
from referee.testing.samplers import SamplerOptions, _emitted_blindly, _share_for, _stages_of
from referee.tests.toy_kernels import FAULTS, QUICK

ORDERS = {
    "residual cut, wide": "places, by falling p",
    "bonus at T = .9, wide": "mean place, at the last position by falling p",
    "the draft's noise again": "places, by falling p / q",
    "the accept test's number again": "places, by token",
}
"""Which order shows a fault."""


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault):
    sampler, options = FAULTS[fault]
    if fault in ORDERS:
        options = {"vocabularies": (16,)} | options
    with pytest.raises(AssertionError) as error:
        assert_exact_sampler(sampler, seed=0, **(QUICK | options))
    first, *lines = str(error.value).splitlines()
    assert "is biased; p is allowed down to 1e-06" in first and lines[-1].startswith(
        "  again: seed=0, "
    )
    assert f"    {ORDERS.get(fault, '')}" in lines[1] and "chi-square" in lines[1]
    assert re.search(
        r"worst cell: .*: (expected \d+\.\d, found \d+, [+-]\d+\.\d standard errors|impossible, )",
        lines[2],
    )


def stage_of(vocab, seed, *given, **options):
    """The stage of an assertion."""
    (stage,) = _stages_of(
        SamplerOptions(seed=seed, vocabularies=(vocab,), **options), *(given or (None, None))
    )[1]
    return stage


def p_values(stage, share, samples):
    """Of all statistics of the control with this share of blind acceptance, by name."""
    root = stage.roots(samples)
    found = count_tests(stage, stage.placed(root, _emitted_blindly(stage, root, share)))
    return {item.what: item.chi_square.p_value for item in found if item.chi_square.degrees}


@pytest.mark.parametrize(
    ("siblings", "draws"),
    [(0, "iid"), (0, "point_mass"), (3, "without_replacement"), (2, "greedy")],
)
def test_the_control_has_the_bias_that_it_says(siblings, draws):
    """With p at one position or a chain's first one: a total variation of .1, counted directly."""
    p, q = torch.tensor([0.5, 0.2, 0.2, 0.1, 0.0]), torch.tensor([0.1, 0.3, 0.2, 0.2, 0.2])
    given = (p, q) if siblings else (p.expand(2, -1), q[None])
    stage = stage_of(5, 0, *given, siblings=siblings, draws=draws)
    root = stage.roots(40_000)
    emitted = _emitted_blindly(stage, root, _share_for(stage, 0.1))
    found = torch.bincount(emitted[:, 0], minlength=5) / len(root)
    assert float((found - p).abs().sum()) / 2 == pytest.approx(0.1, abs=0.012) and found[4] == 0


def test_false_alarms_are_as_rare_as_stated():
    """40 seeds, all exact: 800 dependent p-values are as uniform as 270 independent ones."""
    found = torch.tensor(
        [
            p
            for seed in range(40)
            for v in (6, 16)
            for p in p_values(stage_of(v, seed), 0.0, 800).values()
        ]
    )
    for level in (0.5, 0.1, 0.02):
        share = float((found <= level).double().mean())
        assert abs(share - level) < 4 * math.sqrt(level * (1 - level) / 270)
    assert len(found) > 700 and found.min() > 1e-6


def test_the_smallest_bias_is_found_nine_times_of_ten():
    """40 seeds: a blind share moves exactly that much mass from half of the tokens to the rest."""
    p, q = torch.full((16,), 1 / 16), torch.tensor([1.9 / 16] * 8 + [0.1 / 16] * 8)
    level, share = 1e-4, smallest_bias(2000, 1e-4) / 0.45
    hits = sum(
        p_values(stage_of(16, seed, p, q), share, 2000)["places, by falling p / q"] <= level
        for seed in range(40)
    )
    assert 29 <= hits < 40  # of 40 with probability .9 each: 36, and 29 is 4 standard errors below


def test_rare_cells_are_counted_together_and_nothing_is_lost():
    """200 tokens, 120, 60, 12, 8 expected: the last two join the second, or each other if many."""
    tokens = torch.tensor([0] * 100 + [1] * 60 + [2] * 30 + [3] * 10)
    names, expected, found = token_cells(torch.tensor([0.6, 0.3, 0.06, 0.04]), tokens)
    assert names == [0, 1] and expected.tolist() == pytest.approx([120, 80], rel=1e-6)
    assert found.tolist() == [100, 100]
    names, expected, found = token_cells(torch.tensor([0.1, 0.6, 0.2, 0.1]), tokens)
    assert names == [1, 2, None] and expected.tolist() == pytest.approx([120, 40, 40], rel=1e-6)
    assert found.tolist() == [60, 30, 110]
    test = counted("tokens", [Cells(names, expected, found)] * 2)
    assert test.chi_square.value == pytest.approx(2 * (30 + 2.5 + 122.5), rel=1e-5)
    assert test.chi_square.degrees == 4 and test.chi_square.n == 400
    # The largest: 70 above what is expected, over sqrt(40 * 0.8).
    assert test.worst == "None: expected 40.0, found 110, +12.4 standard errors"
