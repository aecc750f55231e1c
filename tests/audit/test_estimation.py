"""Estimates and their control variates against enumeration, and the paper's own check."""

import itertools
import math
from dataclasses import asdict, replace

import pytest
import torch

from resispec.audit.battery import pair_of_laws
from resispec.audit.chi_square import chi_square_of_counts, of_sums
from resispec.audit.control_variates import controls
from resispec.audit.enumerate import emitted_law, total_variation
from resispec.audit.estimate import EstimatedLaw, Tuples, estimate
from resispec.audit.paper_kl import (
    draft_proxy,
    kl_bound,
    paper_kl,
    random_proxy,
    resispec_proxy,
)
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.verifiers import Law, get_rule
from tests.accounts import law, rng, tuples

pytestmark = pytest.mark.numerics

STANDARD = get_rule("standard")


def kl(law, p):
    return sum(a * math.log(a / b) for a, b in zip(law.tolist(), p.tolist(), strict=True) if a)


# Estimation


@pytest.mark.parametrize(
    ("name", "draws", "dtype"),
    [
        *(("resispec", draws, torch.float64) for draws in Draws),
        ("standard", Draws.IID, torch.float32),
    ],
)
def test_an_estimate_agrees_with_enumeration(monkeypatch, name, draws, dtype):
    p, q = pair_of_laws("random", 5, rng(3))
    rule = get_rule(name)
    truth = emitted_law(rule, p, q, 2, draws)
    given = rule, p.to(dtype), q.to(dtype), Tuples(2, draws, 3000)
    found = estimate(*given, rng(1))
    assert found.num_tuples == (1 if draws is Draws.POINT_MASS else 3000)
    distance = total_variation(truth, p)
    assert abs(found.total_variation.value - distance) <= 0.01 + 4 * found.total_variation.error
    accepted = sum(
        weight
        * float(
            one.select.sum() + (1 - one.select.sum()) * one.residual[sorted(set(siblings))].sum()
        )
        for siblings, weight in tuples(q.tolist(), 2, draws)
        for one in [rule.law(p, q, torch.tensor(siblings), draws)]
    )
    assert abs(found.acceptance - accepted) <= 4 * found.acceptance_error + 1e-6
    assert kl_bound(found, 2) <= kl(truth, p) + 1e-6
    monkeypatch.setattr("resispec.audit.estimate.MAX_ELEMENTS", 35)  # seven tuples at a time
    in_chunks = estimate(*given, rng(1))
    if draws.are_independent:  # else other tuples are drawn
        assert asdict(in_chunks) == pytest.approx(asdict(found), abs=1e-6)


def test_tuples_that_all_look_alike_raise_no_alarm():
    """A peaked law, no rare token drafted: the empirical variance is 0, the deviation is not."""
    p = torch.full((1000,), 1e-7, dtype=torch.float64)
    p[0] = 1 - 999e-7
    for seed in range(5):
        found = estimate(STANDARD, p, p, Tuples(3, Draws.IID, 1000), rng(seed))
        assert abs(found.total_variation.z) < 2 and abs(found.excess(1.0).z) < 2
        assert found.excess(1 - 1e-4).z < 2


def test_rounding_of_float32_is_no_excess():
    """Without randomness a select that sums to 1 + 1.2e-7 (float32) is not above a ceiling of 1."""

    class Rounded:
        def law(self, target_probs, draft_probs, siblings, draws):
            law = get_rule("naive").law(target_probs, draft_probs, siblings, draws)
            top = torch.finfo(target_probs.dtype).eps
            select = torch.zeros_like(law.select).index_fill(-1, torch.tensor([0]), 1 + top)
            return Law(select, law.residual)

    q = torch.tensor([0.0, 1.0, 0.0])
    found = estimate(
        Rounded(), torch.tensor([0.5, 0.25, 0.25]), q, Tuples(2, Draws.IID, 64), rng(0)
    )
    assert found.acceptance > 1 and found.acceptance_error == 0 and abs(found.excess(1.0).z) < 1
    exact = estimate(Rounded(), law(0.5, 0.25, 0.25), q.double(), Tuples(2, Draws.IID, 64), rng(0))
    assert exact.rounding < 1e-13 < 1e-6 < found.rounding


def test_what_cannot_be_estimated_is_refused():
    with pytest.raises(InvalidInput, match="at least 1 sibling and 4 tuples"):
        Tuples(2, Draws.IID, 3)
    with pytest.raises(InvalidInput, match="draft probabilities sum to 0.5"):
        estimate(STANDARD, law(0.5, 0.5), law(0.5, 0.0), Tuples(1, Draws.IID), rng(0))


# Control variates


@pytest.mark.parametrize("draws", list(Draws))
def test_the_mean_of_controls_over_all_tuples_is_zero(draws):
    p, q = pair_of_laws("sparse", 4, rng(3))
    every = torch.tensor(list(itertools.product(range(4), repeat=3)))
    weights = draws.weights(q.expand(64, -1), every)
    possible = weights > 0
    shape = (int(possible.sum()), 4)
    known = controls(p.expand(shape), q.expand(shape), every[possible], draws)
    assert known.shape == (shape[0], 4, 4)
    assert torch.einsum("n,nkv->kv", weights[possible], known).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["optimal", "standard"])
def test_estimates_become_less_noisy(monkeypatch, name):
    """Controls remove a third of the noise or more, and nearly all of the standard rule's."""
    p, q = (
        torch.softmax(2 * torch.randn(200, generator=rng(seed), dtype=torch.float64), -1)
        for seed in (0, 1)
    )
    given = get_rule(name), p, q, Tuples(2, Draws.IID, 1000)
    found = estimate(*given, rng(0)).total_variation
    monkeypatch.setattr("resispec.audit.estimate.reduced", lambda values, _: values)
    assert found.error < 0.67 * estimate(*given, rng(0)).total_variation.error
    assert name != "standard" or abs(found.value) < 1e-3


# The paper's check


@pytest.mark.parametrize("proxy", [resispec_proxy, random_proxy, draft_proxy])
def test_the_papers_check_passes_for_every_proxy(proxy):
    for dtype, vocab, limit in ((torch.float32, 32000, 1e-6), (torch.float64, 50, 1e-15)):
        logits = torch.randn(2, 2, vocab, generator=rng(0), dtype=dtype)
        p, q = torch.softmax(3 * logits, -1)
        kl = paper_kl(p / p.sum(-1, keepdim=True), q, proxy, 3, rng(1))
        assert kl.shape == (2,) and kl.dtype == dtype and kl.abs().max() < limit


def test_getproxy_aligns_with_the_draft_at_the_refused_token_and_is_a_law():
    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.3, 0.5)  # only token 3 can be refused: Z = .3
    proxy = resispec_proxy(p, q, rng(0))
    r = [0.06 + 0.15 * 0.44 / 0.65, 0.09 + 0.15 * 0.21 / 0.65]
    assert proxy.tolist() == pytest.approx([0.5 - r[0], 0.3 - r[1], 0.5])


def test_the_divergence_of_a_set_by_hand_and_what_rounding_leaves_of_it():
    """law(S) = 1 - 6e-8 where p(S) = 1, as sums of float32 laws may be: nothing lies outside S.

    A law that does is seen.
    """
    found = EstimatedLaw(0.5, 0.4, 0.02, 1.0, 0.0, 64, 7.6e-6)
    assert kl_bound(found) == pytest.approx(kl(law(0.5, 0.5), law(0.4, 0.6)))
    assert (
        kl_bound(found, 2) == pytest.approx(kl(law(0.46, 0.54), law(0.4, 0.6)))
        and kl_bound(found, 6) == 0
    )
    for mass, target in ((1 - 6e-8, 1.0), (1 - 6e-8, 1 + 3e-8), (6e-8, 0.0)):
        rounded = replace(found, mass=mass, target=target)
        assert (
            abs(kl_bound(rounded)) < 1e-6 and kl_bound(replace(rounded, rounding=1e-14)) == math.inf
        )
    assert kl_bound(replace(found, mass=0.9, target=1.0)) == math.inf


def test_a_chi_square_of_nan_is_no_statistic():
    """Defect: every comparison with NaN is false, so that it saw nothing, with p = 1."""
    laws = torch.tensor([[0.5, 0.5], [math.nan, 0.5]], dtype=torch.float64)
    for given in (laws, laws.clamp_min(0.5)):
        with pytest.raises(FloatingPointError, match="finite"):
            chi_square_of_counts(given * math.nan, torch.tensor([[30, 30], [30, 30]]))
    with pytest.raises(FloatingPointError, match="finite"):
        of_sums(laws[1], torch.eye(2, dtype=torch.float64), 60)
