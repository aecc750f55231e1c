"""Enumeration, estimation and the paper's own check, against loops, frequencies or numbers by hand."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from accounts import law, rng, tuples

from resispec.audit.battery import KINDS, pair_of_laws, worst_error, worst_tree_error
from resispec.audit.enumerate import chain_law, emitted_law, total_variation, tree_law
from resispec.audit.estimate import Estimate, SetMass, Tuples, estimate, pool
from resispec.audit.first_token import FirstToken
from resispec.audit.paper_kl import (
    draft_proxy,
    kl_bound,
    paper_kl,
    random_proxy,
    reconstruct,
    resispec_proxy,
    true_kl,
)
from resispec.core import Draws, Tree
from resispec.errors import InvalidInput
from resispec.trees import complete, from_child_counts
from resispec.verifiers import Law, get_rule, get_verifier

RANDOM_DRAWS = [Draws.IID, Draws.WITHOUT_REPLACEMENT]


# Enumeration


def test_the_three_token_example_by_hand():
    """p = (.5, .3, .2), q = (.2, .4, .4), one sibling.

    Token 2 is refused w.p. .4 * 1/4 = .1: Z = .1, r = (.02, 0, .04) + .04 * (.48, 0, .16) / .64 = (.05, 0,
    .05). Token 3 is refused w.p. .4 * 1/2 = .2: Z = .2, r = (.04, .08, 0) + .08 * (.46, .22, 0) / .68.
    """
    first, second = law(0.05, 0, 0.05), law(0.04 + 0.0368 / 0.68, 0.08 + 0.0176 / 0.68, 0)
    by_hand = law(0.2, 0.3, 0.2) + first + second
    found = emitted_law(get_rule("resispec"), law(0.5, 0.3, 0.2), law(0.2, 0.4, 0.4), 1, Draws.IID)
    assert found.tolist() == pytest.approx(by_hand.tolist(), abs=1e-12)
    # what tokens 3 and 2 gain
    assert total_variation(found, law(0.5, 0.3, 0.2)) == pytest.approx(0.05 + 0.08 + 0.0176 / 0.68)


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize("kind", KINDS)
def test_enumeration_agrees_with_loops(draws, kind):
    p, q = pair_of_laws(kind, 4, rng(1))
    rule = get_rule("resispec")
    wanted, accepted = torch.zeros_like(p), 0.0
    for siblings, weight in tuples(q.tolist(), 3, draws):
        found = rule.law(p, q, torch.tensor(siblings), draws)
        for token, mass in zip(siblings, found.select, strict=True):
            wanted[token] += weight * mass
        wanted += weight * (1 - found.select.sum()) * found.residual
        accepted += weight * float(
            found.select.sum() + (1 - found.select.sum()) * found.residual[sorted(set(siblings))].sum()
        )
    assert torch.allclose(emitted_law(rule, p, q, 3, draws), wanted, atol=1e-13)
    if draws is Draws.POINT_MASS and kind in ("random", "peaked"):  # elsewhere ties leave the choice open
        whole = estimate(rule, p, q, Tuples(3, draws), rng(0))
        assert whole.acceptance == pytest.approx(accepted) and whole.num_tuples == 1


@pytest.mark.parametrize("draws", [*RANDOM_DRAWS, Draws.GREEDY])
def test_weights_are_those_of_the_draws(draws):
    """Frequencies of 20,000 drawn tuples, seeded; every one within 5 standard errors."""
    q = law(0.5, 0.3, 0.15, 0.05)
    drawn = draws.draw(q.expand(20000, -1), 2, rng(0))
    every = torch.tensor(list(itertools.product(range(4), repeat=2)))
    weights = draws.weights(q.expand(16, -1), every)
    counts = (drawn[:, None] == every).all(-1).double().mean(0)
    assert weights.sum().item() == pytest.approx(1)
    assert ((counts - weights).abs() <= 5 * (weights * (1 - weights) / 20000).sqrt()).all()


@pytest.mark.parametrize("draws", list(Draws))
def test_standard_is_exact_on_the_battery_and_resispec_only_for_a_point_mass(draws):
    assert worst_error(get_rule("standard"), draws, repeats=1).error < 1e-12
    assert worst_tree_error(get_verifier("standard"), draws).error < 1e-12
    rule, tree = (
        worst_error(get_rule("resispec"), draws, repeats=1),
        worst_tree_error(get_verifier("resispec"), draws),
    )
    if draws is Draws.POINT_MASS:
        assert rule.error < 1e-12 and tree.error < 1e-12
    else:
        assert rule.error > 0.2 and tree.error > 0.05
        again = emitted_law(
            get_rule("resispec"), rule.target_probs, rule.draft_probs, int(rule.case[0]), draws
        )
        assert total_variation(again, rule.target_probs) == rule.error


def test_a_law_that_is_nan_is_the_worst_error():
    class Nan:
        def law(self, target_probs, draft_probs, siblings, draws):  # noqa: ARG002 - the contract's
            return Law(torch.full(siblings.shape, math.nan, dtype=target_probs.dtype), target_probs)

    assert worst_error(Nan(), Draws.IID, repeats=1).error == math.inf


def test_a_tree_of_one_level_is_a_rule_and_the_chain_law_a_product():
    p, q = (
        torch.stack(rows)
        for rows in zip(*(pair_of_laws("random", 3, rng(seed)) for seed in range(3)), strict=True)
    )
    verifier = get_verifier("resispec")
    joint = tree_law(verifier, complete(2, 2), p, q, Draws.IID)
    assert torch.allclose(joint.sum(1), emitted_law(get_rule("resispec"), p[0], q[0], 2, Draws.IID))
    assert torch.allclose(emitted_law(FirstToken(verifier), p[0], q[0], 2, Draws.IID), joint.sum(1))
    assert torch.allclose(chain_law(p, 3), torch.einsum("a,ab,bc->abc", p[0], p, p))


def test_tree_law_is_what_verify_emits():
    """1,500 steps drafted and verified, the rest drawn from p; frequencies within 5 standard errors."""
    p, q = (
        torch.stack(rows)
        for rows in zip(*(pair_of_laws("random", 2, rng(seed)) for seed in (4, 6)), strict=True)
    )
    topology, verifier, generator = from_child_counts([[2], [0, 2]]), get_verifier("resispec"), rng(0)
    wanted = tree_law(verifier, topology, p, q, Draws.WITHOUT_REPLACEMENT)
    counts = torch.zeros_like(wanted)
    for _ in range(1500):
        tokens = torch.zeros(5, dtype=torch.int64)
        for parent, children in ((0, slice(1, 3)), (2, slice(3, 5))):
            tokens[children] = Draws.WITHOUT_REPLACEMENT.draw(q[tokens[parent]], 2, generator)
        emits = list(
            verifier.verify(
                Tree(topology, tokens, Draws.WITHOUT_REPLACEMENT), p[tokens], q[tokens], generator
            ).tokens
        )
        while len(emits) < 3:
            emits.append(int(torch.multinomial(p[emits[-1]], 1, generator=generator)))
        counts[tuple(emits)] += 1 / 1500
    assert ((counts - wanted).abs() <= 5 * (wanted * (1 - wanted) / 1500).sqrt()).all()


# Estimation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize("name", ["standard", "resispec"])
def test_an_estimate_agrees_with_enumeration(name, draws, dtype):
    p, q = pair_of_laws("random", 5, rng(3))
    rule = get_rule(name)
    truth = emitted_law(rule, p, q, 2, draws)
    found = estimate(rule, p.to(dtype), q.to(dtype), Tuples(2, draws, 3000), rng(1))
    assert ((found.law - truth).abs() <= 4 * found.standard_error + 1e-6).all()
    distance = total_variation(truth, p)
    assert abs(found.total_variation.value - distance) <= 0.01 + 4 * found.total_variation.error
    accepted = sum(
        weight * float(one.select.sum() + (1 - one.select.sum()) * one.residual[sorted(set(siblings))].sum())
        for siblings, weight in tuples(q.tolist(), 2, draws)
        for one in [rule.law(p, q, torch.tensor(siblings), draws)]
    )
    assert abs(found.acceptance - accepted) <= 4 * found.acceptance_error + 1e-6
    assert kl_bound(found, 2) <= float(true_kl(truth, p)) + 1e-6


def test_chunks_do_not_matter():
    p, q = pair_of_laws("random", 6, rng(0))
    one, many = (
        estimate(get_rule("resispec"), p, q, Tuples(2, Draws.IID, 100, size), rng(1)) for size in (10**6, 7)
    )
    assert torch.allclose(one.law, many.law, atol=1e-12) and one.total_variation.z == pytest.approx(
        many.total_variation.z
    )


@pytest.mark.parametrize("draws", RANDOM_DRAWS)
def test_the_estimates_z_is_calibrated(draws):
    """240 estimates under an exact rule: mean 0, at most unit variance, at most 4, as judged.

    The errors are upper bounds.
    """
    found = []
    for seed in range(240):
        p, q = pair_of_laws(KINDS[seed % len(KINDS)], 6, rng(seed))
        if (q > 0).sum() >= 2:
            found.append(estimate(get_rule("standard"), p, q, Tuples(2, draws, 200), rng(seed)))
    z = torch.tensor([item.total_variation.z for item in found])
    assert (
        z.abs().max() < 4
        and abs(float(z.mean())) < 4 / math.sqrt(len(z))
        and 0.02 < float(z.square().mean()) < 1.2
    )
    assert abs(pool([item.total_variation for item in found]).z) < 4


def test_an_exhausted_draft_goes_on_uniformly():
    """A one-hot q, two siblings without replacement: the second is uniform over the others."""
    p, q = law(0.1, 0.2, 0.3, 0.4), law(0, 1, 0, 0)
    assert (
        estimate(
            get_rule("standard"), p, q, Tuples(2, Draws.WITHOUT_REPLACEMENT, 1000), rng(0)
        ).total_variation.z
        < 4
    )


def test_tuples_that_all_look_alike_raise_no_alarm():
    """A law so peaked that no rare token is drafted: the empirical variance is 0, the deviation is not."""
    p = torch.full((1000,), 1e-7, dtype=torch.float64)
    p[0] = 1 - 999e-7
    for seed in range(10):
        found = estimate(get_rule("standard"), p, p, Tuples(3, Draws.IID, 1000), rng(seed))
        assert abs(found.total_variation.z) < 2 and abs(found.excess(1.0).z) < 2
        assert found.excess(1 - 1e-4).z < 2


def test_rounding_of_float32_is_no_excess():
    """A select that sums to 1 + 1.2e-7, as float32 may, is not above a ceiling of 1: nothing is random."""

    class Rounded:
        def law(self, target_probs, draft_probs, siblings, draws):
            law = get_rule("naive").law(target_probs, draft_probs, siblings, draws)
            top = torch.finfo(target_probs.dtype).eps
            select = torch.zeros_like(law.select).index_fill(-1, torch.tensor([0]), 1 + top)
            return Law(select, law.residual)

    q = torch.tensor([0.0, 1.0, 0.0])
    found = estimate(Rounded(), torch.tensor([0.5, 0.25, 0.25]), q, Tuples(2, Draws.IID, 64), rng(0))
    assert found.acceptance > 1 and found.acceptance_error == 0 and abs(found.excess(1.0).z) < 1
    exact = estimate(Rounded(), law(0.5, 0.25, 0.25), q.double(), Tuples(2, Draws.IID, 64), rng(0))
    assert exact.rounding < 1e-13 < 1e-6 < found.rounding


def test_rounding_of_float32_is_no_infinite_divergence():
    """law(S) = 1 - 6e-8 where p(S) = 1, as sums of float32 laws may be: nothing lies outside S.

    A law that does is seen.
    """
    for mass, target in ((1 - 6e-8, 1.0), (1 - 6e-8, 1 + 3e-8), (6e-8, 0.0)):
        found = Estimate(torch.ones(1), torch.zeros(1), SetMass(mass, target, 1e-5), 1.0, 0.0, 64, 7.6e-6)
        assert abs(kl_bound(found)) < 1e-6 and kl_bound(replace(found, rounding=1e-14)) == math.inf
    assert kl_bound(replace(found, excess_set=SetMass(0.9, 1.0, 1e-5))) == math.inf


def test_nothing_to_average_is_said():
    with pytest.raises(InvalidInput, match="no deviations to average; at least 1 is needed"):
        pool([])


# The paper's check


@pytest.mark.parametrize("proxy", [resispec_proxy, random_proxy, draft_proxy])
def test_the_papers_check_passes_for_every_proxy(proxy):
    for dtype, vocab, limit in (
        (torch.float32, 32000, 1e-6),
        (torch.float64, 32000, 2e-14),
        (torch.float64, 50, 1e-15),
    ):
        logits = torch.randn(2, 2, vocab, generator=rng(0), dtype=dtype)
        p, q = torch.softmax(3 * logits, -1)
        p = p / p.sum(-1, keepdim=True)
        kl = paper_kl(p, q, proxy, 3, rng(1))
        assert kl.shape == (2,) and kl.dtype == dtype and kl.abs().max() < limit


def test_the_papers_sum_telescopes_for_arbitrary_laws():
    p, proxies = law(0.5, 0.3, 0.2), [law(0.0, 0.0, 1.0), law(0.3, 0.3, 0.4), law(1.0, 0.0, 0.0)]
    assert reconstruct(p, proxies).tolist() == pytest.approx(p.tolist(), abs=1e-15)


def test_getproxy_aligns_with_the_draft_at_the_refused_token_and_is_a_law():
    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.3, 0.5)  # only token 3 can be refused: Z = .3
    proxy = resispec_proxy(p, q, rng(0))
    r = [0.06 + 0.15 * 0.44 / 0.65, 0.09 + 0.15 * 0.21 / 0.65]
    assert proxy.tolist() == pytest.approx(
        [0.5 - r[0], 0.3 - r[1], 0.5]
    ) and proxy.sum().item() == pytest.approx(1)


def test_the_true_divergence_sees_the_bias():
    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.4, 0.4)
    marginal = emitted_law(get_rule("resispec"), p, q, 1, Draws.IID)
    assert float(true_kl(marginal, p)) == pytest.approx(
        sum(a * math.log(a / b) for a, b in zip(marginal.tolist(), p.tolist(), strict=True))
    )
    assert float(true_kl(marginal, p)) > 0.01 > 1e-12 > abs(float(paper_kl(p, q, resispec_proxy, 1, rng(0))))
    assert (
        float(true_kl(law(0.5, 0.5, 0), law(1, 0, 0))) == math.inf
        and float(true_kl(law(1, 0), law(1, 0))) == 0
    )
