"""The optimal rule: exact for any grouping, by hand, and at the ceiling."""

import itertools
import math

import pytest
import torch
from accounts import emitted_law, law, random_law, rng

from resispec.audit.battery import KINDS, pair_of_laws
from resispec.audit.ceiling import ceiling
from resispec.audit.row_checks import accepted
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.verifiers import get_rule
from resispec.verifiers.optimal import _largest_root


@pytest.mark.parametrize("bins", [0, 2, 1024])
def test_it_is_exact_for_any_grouping_and_more_siblings(bins):
    rule = get_rule("optimal", bins=bins)
    for vocab, num_siblings in ((5, 3), (2, 6), (3, 4), (1, 3)):
        for zeros in (0, min(2, vocab - 1)):
            p, q = random_law(vocab, rng(vocab), zeros), random_law(vocab, rng(zeros), zeros)
            assert (emitted_law(rule, p, q, num_siblings, Draws.IID) - p).abs().max() < 1e-12


def test_one_sibling_is_speculative_sampling():
    p, q = random_law(9, rng(0), 2), random_law(9, rng(1), 2)
    siblings = torch.arange(9)[q > 0][:, None]
    optimal, standard = (
        rule.law(p.expand(len(siblings), -1), q.expand(len(siblings), -1), siblings, Draws.IID)
        for rule in (get_rule("optimal", bins=0), get_rule("standard"))
    )
    assert torch.allclose(optimal.select, standard.select, atol=1e-14)
    assert torch.allclose(optimal.residual, standard.residual, atol=1e-14)


def test_two_tokens_by_hand():
    """p = (1/3, 2/3), q = (2/3, 1/3), B = 2: only the pair (0, 0) lacks token 1; the rule errs by 1/9.

    That is 4/9 - 1/3. m = (4/9, 5/9): token 1 wins whenever it is there. Token 0 is accepted with probability
    3/4 if it won, else 1 is emitted.
    """
    p, q = law(1 / 3, 2 / 3), law(2 / 3, 1 / 3)
    pairs = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    laws = get_rule("optimal", bins=0).law(p.expand(4, -1), q.expand(4, -1), pairs, Draws.IID)
    wanted = torch.tensor([[3 / 8, 3 / 8], [0, 1], [1, 0], [1 / 2, 1 / 2]], dtype=torch.float64)
    assert torch.allclose(laws.select, wanted, atol=1e-12)
    assert torch.allclose(laws.residual, law(0.0, 1.0), atol=1e-12)


@pytest.mark.parametrize("power", [2, 3, 7, 100])
def test_roots_of_lines_against_a_power(power):
    """From simple roots to double ones, where a root is known to the square root of the precision."""
    least = power ** (-1 / (power - 1))
    near = least + torch.logspace(-9, -2, 50).double()
    root = torch.cat((torch.linspace(least, 1, 2001).double(), near)).clamp_max(1)
    for scale in (0.3, 0.9, 1.0):
        slope, wanted = torch.full_like(root, scale ** (power - 1)), scale * root
        error = (_largest_root(slope, slope * wanted - wanted**power, power) - wanted).abs()
        assert (error * (root - least) / scale < 1e-13).all() and (error < 3e-8 * scale).all()


def test_every_token_of_its_own_group_attains_the_ceiling():
    generator, rule = rng(5), get_rule("optimal", bins=0)
    for case, kind in enumerate(KINDS * 8):
        vocab, num_siblings = 2 + case % 5, 1 + case % 4
        p, q = pair_of_laws(kind, vocab, generator)
        tokens = torch.tensor(list(itertools.product(range(vocab), repeat=num_siblings)))
        tokens = tokens[q[tokens].prod(-1) > 0]
        laws = rule.law(p.expand(len(tokens), -1), q.expand(len(tokens), -1), tokens, Draws.IID)
        acceptance = float(q[tokens].prod(-1) @ accepted(laws, tokens))
        assert acceptance == pytest.approx(float(ceiling(p, q, num_siblings, Draws.IID)), abs=1e-9)


def test_nan_is_not_hidden_and_groups_are_at_least_two():
    for bins, place in itertools.product((0, 8), (0, 1)):
        laws = [random_law(6, rng(0)), random_law(6, rng(1))]
        laws[place][2] = math.nan
        assert get_rule("optimal", bins=bins).law(*laws, torch.tensor([0, 1]), Draws.IID).select.isnan().all()
    for bins in (1, -1):
        with pytest.raises(InvalidInput, match=f"optimal: {bins} bins; allowed: at least 2, or 0"):
            get_rule("optimal", bins=bins)
