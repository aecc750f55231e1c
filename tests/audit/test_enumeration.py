"""Enumeration against loops, frequencies and numbers by hand, and what is refused."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accounts import law, rng, tuples
from faults import FAULTS
from faults.truth import bigrams

from resispec.audit.as_sibling_rule import FirstToken
from resispec.audit.battery import (
    TREES,
    pair_of_laws,
    worst_error,
    worst_tree_error,
    worst_wide_error,
)
from resispec.audit.enumerate import chain_law, emitted_law, total_variation, tree_law
from resispec.audit.simulate import Scene
from resispec.audit.verdict import TOLERANCE
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.trees import chain, complete, from_child_counts
from resispec.verifiers import Law, TopDown, as_verifier, get_rule, get_verifier

STANDARD = get_rule("standard")


def test_the_three_token_example_by_hand():
    """p = (.5, .3, .2), q = (.2, .4, .4), one sibling.

    Token 2 is refused w.p. .4 * 1/4 = .1: Z = .1, r = (.02, 0, .04) + .04 * (.48, 0, .16) / .64 = (.05, 0,
    .05). Token 3 is refused w.p. .4 * 1/2 = .2: Z = .2, r = (.04, .08, 0) + .08 * (.46, .22, 0) / .68.
    """
    first, second = law(0.05, 0, 0.05), law(0.04 + 0.0368 / 0.68, 0.08 + 0.0176 / 0.68, 0)
    by_hand = law(0.2, 0.3, 0.2) + first + second
    emitted = emitted_law(get_rule("resispec"), law(0.5, 0.3, 0.2), law(0.2, 0.4, 0.4), 1, Draws.IID)
    assert emitted.tolist() == pytest.approx(by_hand.tolist(), abs=1e-12)
    # what tokens 3 and 2 gain
    assert total_variation(emitted, law(0.5, 0.3, 0.2)) == pytest.approx(0.05 + 0.08 + 0.0176 / 0.68)


@pytest.mark.parametrize("draws", list(Draws))
@pytest.mark.parametrize("kind", ["random", "sparse", "one-hot"])
def test_enumeration_agrees_with_loops(draws, kind):
    p, q = pair_of_laws(kind, 4, rng(1))
    rule, wanted = get_rule("resispec"), torch.zeros_like(p)
    for siblings, weight in tuples(q.tolist(), 3, draws):
        conditional = rule.law(p, q, torch.tensor(siblings), draws)
        for token, mass in zip(siblings, conditional.select, strict=True):
            wanted[token] += weight * mass
        wanted += weight * (1 - conditional.select.sum()) * conditional.residual
    assert torch.allclose(emitted_law(rule, p, q, 3, draws), wanted, atol=1e-13)


@pytest.mark.parametrize("draws", list(Draws))
def test_standard_is_exact_on_the_battery_and_resispec_only_for_a_point_mass(draws):
    small = {"repeats": 1, "most_siblings": 3}
    assert worst_error(STANDARD, draws, **small).error < 1e-12
    assert worst_tree_error(get_verifier("standard"), draws, trees=TREES[:4]).error < 1e-12
    rule = worst_error(get_rule("resispec"), draws, **small)
    tree = worst_tree_error(get_verifier("resispec"), draws, trees=TREES[:4])
    if draws is Draws.POINT_MASS:
        assert max(rule.error, tree.error) < 1e-12
    else:
        assert rule.error > 0.2 and tree.error > 0.05
        given = rule.target_probs, rule.draft_probs, int(rule.case[0]), draws
        again = emitted_law(get_rule("resispec"), *given)
        assert total_variation(again, rule.target_probs) == rule.error


@pytest.mark.parametrize(
    "fault", ["acceptance times 1.15 from depth 3", "levels forget what they passed on, from depth 3"]
)
def test_enumeration_sees_deep_levels(fault):
    deep, shallow = ([one for one in TREES if (one[0].num_levels > 4) is wanted] for wanted in (True, False))
    verifier = as_verifier(FAULTS[fault].make())
    assert worst_tree_error(verifier, Draws.IID, trees=deep[:1]).error > 100 * TOLERANCE
    assert worst_tree_error(verifier, Draws.IID, trees=shallow[:3]).error < 1e-12


def test_enumeration_sees_what_is_wrong_with_little_residuals_of_wide_laws():
    fault = FAULTS["target itself where less than .001 is left"]
    assert worst_wide_error(fault.make(), Draws.IID, 2).error > 50 * TOLERANCE


@pytest.mark.parametrize("draws", [Draws.WITHOUT_REPLACEMENT, Draws.GREEDY])
def test_draws_that_take_tokens_without_mass_are_enumerated_whole(draws):
    """A mass of 1e-40 is none in single precision, so that the second sibling is any other token."""
    p, q = law(0.4, 0.3, 0.2, 0.1), law(1, 1e-40, 0, 0)
    assert total_variation(emitted_law(STANDARD, p, q, 2, draws), p) < 1e-12


def test_a_tree_whose_chances_to_stop_are_no_law_is_refused_however_unlikely():
    class Forgetful(TopDown):
        """It stops nowhere where a token of next to no mass was drafted."""

        def outcomes(self, tree, target_probs, draft_probs):
            outcomes = super().outcomes(tree, target_probs, draft_probs)
            likely = draft_probs[tree.topology.parents[1:], tree.tokens[1:]] > 1e-300
            return replace(outcomes, stop=outcomes.stop * likely.all())

    with pytest.raises(FloatingPointError, match="chances to stop in a verified tree sum to 0, the least"):
        worst_tree_error(Forgetful(STANDARD), Draws.IID, trees=[(chain(2), 3)])


def test_a_law_that_is_nan_is_the_worst_error():
    rule = SimpleNamespace(law=lambda p, _, siblings, __: Law(siblings * torch.nan * p[..., :1], p))
    assert worst_error(rule, Draws.IID, repeats=1, most_siblings=1).error == math.inf


def test_a_tree_of_one_level_is_a_rule_and_the_chain_law_a_product():
    p, q = bigrams(3)
    verifier = get_verifier("resispec")
    joint = tree_law(verifier, complete(2, 2), p, q, Draws.IID)
    assert torch.allclose(joint.sum(1), emitted_law(get_rule("resispec"), p[0], q[0], 2, Draws.IID))
    assert torch.allclose(emitted_law(FirstToken(verifier), p[0], q[0], 2, Draws.IID), joint.sum(1))
    assert torch.allclose(chain_law(p, 3), torch.einsum("a,ab,bc->abc", p[0], p, p))


def test_tree_law_is_what_verify_emits():
    """1,500 steps drafted and verified, the rest drawn from p; frequencies within 5 standard errors."""
    (p, q), draws = bigrams(2), Draws.WITHOUT_REPLACEMENT
    topology, verifier, generator = from_child_counts([[2], [0, 2]]), get_verifier("resispec"), rng(0)
    scene, counts = Scene("it", topology, p, q, torch.arange(2)), torch.zeros(2, 2, 2)
    for _ in range(1500):
        tokens = scene.drafted(draws, generator)
        emitted = list(verifier.verify(*scene.given(tokens, draws), generator).tokens)
        while len(emitted) < 3:
            emitted.append(int(torch.multinomial(p[emitted[-1]], 1, generator=generator)))
        counts[tuple(emitted)] += 1 / 1500
    wanted = tree_law(verifier, topology, p, q, draws)
    assert ((counts - wanted).abs() <= 5 * (wanted * (1 - wanted) / 1500).sqrt()).all()


def test_enumeration_refuses_what_is_no_law():
    p = law(0.5, 0.5)
    with pytest.raises(InvalidInput, match="target probabilities sum to 1.5"):
        emitted_law(STANDARD, law(1.0, 0.5), p, 1, Draws.IID)
    with pytest.raises(InvalidInput, match="draft probabilities hold -0.5 at entry 1"):
        emitted_law(STANDARD, p, law(1.5, -0.5), 1, Draws.IID)
    with pytest.raises(InvalidInput, match="3 distinct siblings of 2 tokens"):
        emitted_law(STANDARD, p, p, 3, Draws.WITHOUT_REPLACEMENT)
