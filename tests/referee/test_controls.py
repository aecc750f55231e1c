"""Control variates: their mean is 0 for every kind of draws, and subtracting them changes no mean."""

import itertools

import pytest
import torch
from accounts import law, rng

from resispec.audit.battery import pair_of_laws
from resispec.audit.controls import controls, multiples, reduced
from resispec.audit.estimate import Tuples, estimate
from resispec.core import Draws
from resispec.verifiers import get_rule


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize("kind", ["random", "sparse", "peaked"])
def test_their_mean_over_all_tuples_is_zero(draws, kind):
    p, q = pair_of_laws(kind, 4, rng(3))
    tuples = torch.tensor(list(itertools.product(range(4), repeat=3)))
    weights = draws.weights(q.expand(64, -1), tuples)
    possible = weights > 0
    shape = (int(possible.sum()), 4)
    found = controls(p.expand(shape), q.expand(shape), tuples[possible], draws)
    assert found.shape == (shape[0], 4, 4)
    assert torch.einsum("n,nkv->kv", weights[possible], found).abs().max() < 1e-12


def test_each_is_what_it_is_by_hand():
    """One sibling, token 1: accepted with probability .25 / .5, else norm(max(p - q, 0)) = (.6, 0, .4)."""
    p, q = law(0.5, 0.25, 0.25), law(0.35, 0.5, 0.15)
    [[standard, sibling]] = controls(p[None], q[None], torch.tensor([[1]]), Draws.IID)
    assert standard.tolist() == pytest.approx([0.3 - 0.5, 0.5 - 0.25, 0.2 - 0.25])
    assert sibling.tolist() == pytest.approx([-0.35, 0.5, -0.15])


def test_the_mean_stays_and_the_noise_goes():
    """y = 3 c + noise of standard deviation .1, and a control that is another one twice."""
    generator = rng(0)
    known = torch.randn(4000, 2, generator=generator, dtype=torch.float64)
    known = torch.cat((known, 2 * known[:, :1]), 1)
    noise = 0.1 * torch.randn(4000, generator=generator, dtype=torch.float64)
    found = reduced(5 + 3 * known[:, 0] + noise, known)
    assert abs(float(found.mean()) - 5) < 4 * 0.1 / 4000**0.5 and float(found.std()) == pytest.approx(
        0.1, rel=0.1
    )
    assert torch.equal(reduced(known[:1, 0], known[:1]), known[:1, 0])  # nothing to learn from


def test_a_control_that_hardly_varies_is_hardly_used():
    """Least squares, but for a ridge of RARE_EVENTS = 4 over the number of tuples."""
    covariance, cross = torch.diag(law(1.0, 1e-6)), law(0.5, 1e-4)
    assert multiples(covariance, cross, 4000).tolist() == pytest.approx([0.5 / 1.001, 1e-4 / 1.001e-3])
    # One rare event in the first half tells nothing about the second, where the control is a small constant.
    known = torch.full((2000, 1), -1e-3, dtype=torch.float64)
    known[0] = 1
    values = 0.5 + 0.5 * (known[:, 0] > 0).double()
    assert abs(float(reduced(values, known).mean()) - 0.5) < 1e-2


@pytest.mark.parametrize("name", ["optimal", "kseq", "resispec", "standard"])
def test_estimates_become_less_noisy(monkeypatch, name):
    """At least a third less than without controls; hardly any of the standard rule's noise is left."""
    p, q = (
        torch.softmax(2 * torch.randn(200, generator=rng(seed), dtype=torch.float64), -1) for seed in (0, 1)
    )
    found = estimate(get_rule(name), p, q, Tuples(2, Draws.IID, 4000), rng(0)).total_variation
    monkeypatch.setattr("resispec.audit.estimate.reduced", lambda values, _: values)
    plain = estimate(get_rule(name), p, q, Tuples(2, Draws.IID, 4000), rng(0)).total_variation
    assert found.error < 0.67 * plain.error
    assert name != "standard" or abs(found.value) < 1e-3
