"""The optimal rule: exact for any grouping, at the ceiling, steady in corners of large vocabularies."""

import itertools
import math

import pytest
import torch
from accounts import emitted_law, random_law, rng

from resispec.audit.battery import KINDS, pair_of_laws, worst_error, worst_tree_error
from resispec.audit.ceiling import ceiling
from resispec.audit.estimate import Tuples, estimate
from resispec.audit.laws import accepted
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.verifiers import get_rule, get_verifier
from resispec.verifiers.optimal import _largest_root


def law(*weights):
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


def iid(p, q, num_siblings):
    """All tuples with positive probability, and that probability."""
    tokens = torch.tensor(list(itertools.product(range(len(p)), repeat=num_siblings)))
    weights = q[tokens].prod(-1)
    return tokens[weights > 0], weights[weights > 0]


def acceptance(rule, p, q, num_siblings):
    tokens, weights = iid(p, q, num_siblings)
    laws = rule.law(p.expand(len(tokens), -1), q.expand(len(tokens), -1), tokens, Draws.IID)
    return float(weights @ accepted(laws, tokens))


# Exactness


@pytest.mark.parametrize("bins", [0, 2, 3, 16, 1024])
def test_it_is_exact_on_the_battery_for_any_grouping(bins):
    assert worst_error(get_rule("optimal", bins=bins), Draws.IID).error < 1e-13


def test_it_is_exact_in_trees():
    assert worst_tree_error(get_verifier("optimal"), Draws.IID).error < 1e-12


@pytest.mark.parametrize(("vocab", "num_siblings"), [(6, 4), (2, 8), (3, 6), (1, 3)])
@pytest.mark.parametrize("bins", [0, 5, 1024])
def test_it_is_exact_for_more_siblings(bins, vocab, num_siblings):
    generator, rule = rng(vocab), get_rule("optimal", bins=bins)
    for zeros in (0, min(2, vocab - 1)):
        p, q = random_law(vocab, generator, zeros), random_law(vocab, generator, zeros)
        assert (emitted_law(rule, p, q, num_siblings, Draws.IID) - p).abs().max() < 1e-12


@pytest.mark.parametrize("bins", [0, 4, 1024])
def test_a_target_of_less_than_full_mass_is_emitted_whole(bins):
    """Over all tuples V gets a p, and no token 1 - a, where a = 0 and a tiny one are allowed."""
    for seed, mass in enumerate((0.7, 0.05, 1e-9, 0.0)):
        p, q = mass * random_law(5, rng(seed), seed % 2), random_law(5, rng(seed + 9), 1)
        tokens, weights = iid(p, q, 3)
        laws = get_rule("optimal", bins=bins).law(
            p.expand(len(tokens), -1), q.expand(len(tokens), -1), tokens, Draws.IID
        )
        rest = 1 - laws.select.sum(-1)
        emitted = weights @ (rest[:, None] * laws.residual)
        emitted = emitted.index_add(0, tokens.flatten(), (weights[:, None] * laws.select).flatten())
        assert (emitted - p).abs().max() < 1e-12
        assert float(weights @ (rest * (1 - laws.residual.sum(-1)))) == pytest.approx(1 - mass, abs=1e-12)


def test_one_sibling_is_speculative_sampling():
    p, q = random_law(9, rng(0), 2), random_law(9, rng(1), 2)
    siblings = torch.arange(9)[q > 0][:, None]
    standard = get_rule("standard").law(
        p.expand(len(siblings), -1), q.expand(len(siblings), -1), siblings, Draws.IID
    )
    found = get_rule("optimal", bins=0).law(
        p.expand(len(siblings), -1), q.expand(len(siblings), -1), siblings, Draws.IID
    )
    assert torch.allclose(found.select, standard.select, atol=1e-14)
    assert torch.allclose(found.residual, standard.residual, atol=1e-14)


def test_two_tokens_by_hand():
    """p = (1/3, 2/3), q = (2/3, 1/3), B = 2: only the pair (0, 0) lacks token 1; the rule errs by 1/9.

    That is 4/9 - 1/3. m = (4/9, 5/9): token 1 wins whenever it is there. Token 0 is accepted with probability
    3/4 if it won, else 1 is emitted.
    """
    p, q = law(1, 2), law(2, 1)
    pairs = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    found = get_rule("optimal", bins=0).law(p.expand(4, -1), q.expand(4, -1), pairs, Draws.IID)
    wanted = torch.tensor([[3 / 8, 3 / 8], [0, 1], [1, 0], [1 / 2, 1 / 2]], dtype=torch.float64)
    assert torch.allclose(found.select, wanted, atol=1e-12)
    assert torch.allclose(found.residual, torch.tensor([0.0, 1.0], dtype=torch.float64), atol=1e-12)


# The choice among siblings, against the description of the scores


def choose_by_scores(p, q, siblings, num_draws, generator):
    """How often each sibling has the largest score, by `_log_chain`'s coins and draws; roots by bisection."""
    n, order = len(siblings), sorted(range(len(p)), key=lambda token: p[token] / q[token])
    prefixes = [order[:k] for k in range(len(p) + 1)]
    big_q, big_p = ([sum(law[token] for token in prefix) for prefix in prefixes] for law in (q, p))
    gap = max(a**n - b for a, b in zip(big_q, big_p, strict=True))
    low = min((b + gap) / a for a, b in zip(big_q[1:], big_p[1:], strict=True))
    high = max((1 - b - gap) / (1 - a) for a, b in zip(big_q[:-1], big_p[:-1], strict=True))
    knots, chosen = [0.0], 0.0
    for token, a in zip(order, big_q[1:], strict=True):
        ratio = min(max(p[token] / q[token], low), high)
        chosen += ratio * q[token]
        # right of the lowest point the difference only rises
        bottom, top = max(a, (ratio / n) ** (1 / (n - 1))), 1.0
        for _ in range(60):
            middle = (bottom + top) / 2
            bottom, top = (bottom, middle) if middle**n > chosen + ratio * (middle - a) else (middle, top)
        knots.append(top)
    places = torch.tensor([order.index(token) + 1 for token in siblings]).expand(num_draws, -1).clone()
    heads = torch.tensor(
        [0.0] + [(knots[k - 1] - big_q[k - 1]) / (knots[k] - big_q[k - 1]) for k in range(1, len(knots))]
    )
    going = torch.ones_like(places, dtype=torch.bool)
    for _ in order:
        going &= torch.rand(places.shape, generator=generator) < heads[places]
        places = places - going.long()
    knots = torch.tensor(knots, dtype=torch.float64)
    scores = (
        knots[places - 1]
        + (knots[places] - knots[places - 1]) * torch.rand(places.shape, generator=generator).double()
    )
    return torch.bincount(scores.argmax(-1), minlength=n) / num_draws, low, high


@pytest.mark.parametrize("siblings", [(0, 1, 2), (3, 1, 1), (4, 4, 2), (2, 0)])
def test_each_sibling_wins_as_often_as_its_score_is_the_largest(siblings):
    p, q = law(0.35, 0.3, 0.2, 0.1, 0.05), law(0.1, 0.25, 0.3, 0.15, 0.2)
    wins, low, high = choose_by_scores(p.tolist(), q.tolist(), siblings, 200_000, rng(0))
    found = get_rule("optimal", bins=0).law(p, q, torch.tensor(siblings), Draws.IID)
    tokens = torch.tensor(siblings)
    chosen = (p / q).clamp(low, high)[tokens] * q[tokens]
    wanted = wins * (p[tokens] / chosen).clamp_max(1)
    assert (found.select - wanted).abs().max() < 5 * 0.5 / math.sqrt(200_000)
    assert torch.allclose(
        found.residual, (p - (p / q).clamp(low, high) * q).clamp_min(0) / (p - high * q).clamp_min(0).sum()
    )


@pytest.mark.parametrize("power", [2, 3, 4, 7, 16, 100])
def test_roots_of_lines_against_a_power(power):
    """From simple roots to double ones, where a root is known to the square root of the precision."""
    least = power ** (-1 / (power - 1))
    root = torch.cat(
        (torch.linspace(least, 1, 2001).double(), least + torch.logspace(-9, -2, 50).double())
    ).clamp_max(1)
    for scale in (0.3, 0.9, 1.0):
        slope, wanted = torch.full_like(root, scale ** (power - 1)), scale * root
        found = _largest_root(slope, slope * wanted - wanted**power, power)
        assert ((found - wanted).abs() * (root - least) / scale < 1e-13).all() and (
            (found - wanted).abs() < 3e-8 * scale
        ).all()


# Optimality


def test_every_token_of_its_own_group_attains_the_ceiling():
    generator = rng(5)
    for case, kind in enumerate(KINDS * 20):
        vocab, num_siblings = 2 + case % 5, 1 + case % 4
        p, q = pair_of_laws(kind, vocab, generator)
        highest = float(ceiling(p, q, num_siblings, Draws.IID))
        assert acceptance(get_rule("optimal", bins=0), p, q, num_siblings) == pytest.approx(highest, abs=1e-9)


def test_bins_give_away_less_than_a_thousandth():
    """1,000 pairs of 50 to 2,000 tokens, by the acceptance sum min(p, m)."""
    generator, worst = rng(3), 1.0
    for case in range(1000):
        vocab, num_siblings = (
            int(torch.randint(50, 2001, (), generator=generator)),
            (1, 2, 3, 4, 16)[case % 5],
        )
        logits = (
            torch.randn(vocab, generator=generator, dtype=torch.float64)
            * 4
            * torch.rand((), generator=generator)
        )
        noise = (
            torch.randn(vocab, generator=generator, dtype=torch.float64)
            * 2.5
            * torch.rand((), generator=generator)
        )
        temperature = (0.3, 0.6, 1.0)[case % 3]
        p, q = ((values / temperature).softmax(-1) for values in (logits, logits + noise))
        highest = float(ceiling(p, q, num_siblings, Draws.IID))
        exact, binned = (expected_acceptance(bins, p, q, num_siblings) for bins in (0, 1024))
        assert exact == pytest.approx(highest, abs=1e-9)
        worst = min(worst, binned / highest)
    assert 0.999 <= worst <= 1


def expected_acceptance(bins, p, q, num_siblings):
    groups, ratio, _ = get_rule("optimal", bins=bins)._proxy(p, q, num_siblings)
    return float(torch.minimum(p, q * ratio.gather(-1, groups)).sum())


def test_the_acceptance_is_that_of_sampled_tuples():
    """The same number by whole laws: V = 2,000, siblings drawn; and `standard` has less."""
    logits = 2 * torch.randn(2000, generator=rng(0))
    p, q = logits.softmax(-1), (logits + torch.randn(2000, generator=rng(1))).softmax(-1)
    highest = float(ceiling(p, q, 3, Draws.IID))
    for bins in (0, 1024):
        found = estimate(get_rule("optimal", bins=bins), p, q, Tuples(3, Draws.IID, 4000), rng(2))
        often = p > 0.003  # of rarer tokens too few were drafted for a standard error
        assert (
            found.total_variation.z < 4
            and ((found.law - p).abs() <= 5 * found.standard_error + 1e-6)[often].all()
            and often.sum() > 30
        )
        assert abs(found.acceptance - highest) < 4 * found.acceptance_error + 0.001 * highest
    standard = estimate(get_rule("standard"), p, q, Tuples(3, Draws.IID, 4000), rng(2))
    assert standard.acceptance + 4 * standard.acceptance_error < found.acceptance


def test_nan_is_not_hidden():
    for bins, place in itertools.product((0, 8), (0, 1)):
        laws = [random_law(6, rng(0)), random_law(6, rng(1))]
        laws[place][2] = math.nan
        assert get_rule("optimal", bins=bins).law(*laws, torch.tensor([0, 1]), Draws.IID).select.isnan().all()


def test_wrong_use_is_refused():
    for bins in (1, -1):
        with pytest.raises(InvalidInput, match=f"optimal: {bins} bins; allowed: at least 2, or 0"):
            get_rule("optimal", bins=bins)
    p = law(1, 1, 1)
    with pytest.raises(
        InvalidInput, match="optimal is not exact for draws 'without_replacement'; supported: iid"
    ):
        get_rule("optimal").law(p, p, torch.tensor([0, 1]), Draws.WITHOUT_REPLACEMENT)
