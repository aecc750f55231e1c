"""Enumeration against loops, frequencies and numbers by hand, and what is refused."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from resispec.audit.as_sibling_rule import FirstToken
from resispec.audit.battery import (
    KINDS,
    TREES,
    pair_of_laws,
    rule_cases,
    tree_cases,
    wide_cases,
    worst,
)
from resispec.audit.enumerate import chain_law, emitted_law, total_variation, tree_law
from resispec.audit.estimate import Tuples, estimate
from resispec.audit.paper_kl import draft_proxy, paper_kl
from resispec.audit.path_bound import path_bound
from resispec.audit.verdict import TOLERANCE
from resispec.audit.z_score import overdraft_terms, rank_terms, surprisal_terms
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.trees import chain, complete
from resispec.verifiers import Law, TopDown, get_rule, get_verifier
from tests.accounts import law, rng, tuples
from tests.faults import FAULTS
from tests.faults.truth import bigrams

pytestmark = pytest.mark.numerics

STANDARD = get_rule("standard")


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
def test_resispec_is_exact_on_the_battery_only_for_a_point_mass(draws):
    small = {"repeats": 1, "most_siblings": 3}
    rule = worst(rule_cases(get_rule("resispec"), draws, **small))
    tree = worst(tree_cases(get_verifier("resispec"), draws, trees=TREES[:4]))
    if draws is Draws.POINT_MASS:
        assert max(rule.error, tree.error) < 1e-12
    else:
        assert rule.error > 0.2 and tree.error > 0.05
        given = rule.target_probs, rule.draft_probs, int(rule.case[0]), draws
        assert (
            total_variation(emitted_law(get_rule("resispec"), *given), rule.target_probs)
            == rule.error
        )


def test_enumeration_sees_what_is_wrong_with_little_residuals_of_wide_laws():
    fault = FAULTS["target itself where less than .001 is left"]
    assert worst(wide_cases(fault.make(), Draws.IID, 2)).error > 50 * TOLERANCE


def test_trees_that_draws_cannot_fill_are_left_out():
    """Distinct siblings told as independent find no eight different ones of two tokens."""
    draws = FAULTS["distinct siblings told as independent"].draws
    trees = [(complete(2, 2), 4), (complete(2, 8), 2)]
    assert len(list(tree_cases(get_verifier("standard"), draws, trees=trees))) == len(KINDS)


def test_a_tree_whose_chances_to_stop_are_no_law_is_refused_however_unlikely():
    class Forgetful(TopDown):
        """It stops nowhere where a token of next to no mass was drafted."""

        def outcomes(self, tree, target_probs, draft_probs):
            outcomes = super().outcomes(tree, target_probs, draft_probs)
            likely = draft_probs[tree.topology.parents[1:], tree.tokens[1:]] > 1e-300
            return replace(outcomes, stop=outcomes.stop * likely.all())

    with pytest.raises(
        FloatingPointError, match="chances to stop in a verified tree sum to 0, the least"
    ):
        worst(tree_cases(Forgetful(STANDARD), Draws.IID, trees=[(chain(2), 3)]))


def test_a_law_that_is_nan_is_the_worst_error():
    rule = SimpleNamespace(law=lambda p, _, siblings, __: Law(siblings * torch.nan * p[..., :1], p))
    assert worst(rule_cases(rule, Draws.IID, repeats=1, most_siblings=1)).error == math.inf


def test_a_tree_of_one_level_is_a_rule_and_the_chain_law_a_product():
    p, q = bigrams(3)
    verifier = get_verifier("resispec")
    joint = tree_law(verifier, complete(2, 2), p, q, Draws.IID)
    assert torch.allclose(joint.sum(1), emitted_law(get_rule("resispec"), p[0], q[0], 2, Draws.IID))
    assert torch.allclose(emitted_law(FirstToken(verifier), p[0], q[0], 2, Draws.IID), joint.sum(1))
    assert torch.allclose(chain_law(p, 3), torch.einsum("a,ab,bc->abc", p[0], p, p))


def test_enumeration_refuses_what_is_no_law():
    p = law(0.5, 0.5)
    for given, message in (
        ((law(1.0, 0.5), p, 1), "target probabilities sum to 1.5"),
        ((p, law(1.5, -0.5), 1), "draft probabilities hold -0.5 at entry 1"),
        ((p, p, 3), "3 distinct siblings of 2 tokens"),
    ):
        with pytest.raises(InvalidInput, match=message):
            emitted_law(STANDARD, *given, Draws.WITHOUT_REPLACEMENT)


P, Q = law(0.5, 0.3, 0.2), law(0.2, 0.4, 0.4)
TUPLES = Tuples(2, Draws.IID)
TOKENS = torch.tensor([1])


@pytest.mark.parametrize(
    ("called", "message"),
    [
        (lambda: emitted_law(STANDARD, P[None], Q[None], 2, Draws.IID), r"target .* \(1, 3\)"),
        (lambda: emitted_law(STANDARD, P, Q[None], 2, Draws.IID), r"draft .* \(1, 3\); .* \(3,\)"),
        (lambda: estimate(STANDARD, P[None], Q[None], TUPLES, rng(0)), r"target .* \(1, 3\)"),
        (
            lambda: tree_law(
                TopDown(STANDARD), chain(2), P.expand(3, 3), Q.expand(2, 3), Draws.IID
            ),
            r"draft rows have the shape \(2, 3\); allowed: \(3, 3\)",
        ),
        (lambda: total_variation(P.expand(2, 3), P), r"laws have the shape \(2, 3\)"),
        (lambda: surprisal_terms(P.expand(4, 3), TOKENS), r"tokens have .*\(1,\); allowed: \(4,\)"),
        (lambda: rank_terms(P.expand(4, 3), TOKENS), r"tokens have .*\(1,\); allowed: \(4,\)"),
        (lambda: overdraft_terms(P.expand(4, 3), Q.expand(4, 3), TOKENS), "tokens have"),
        (lambda: overdraft_terms(P[None], Q[None, :1], TOKENS), r"draft prob.* \(1, 1\)"),
        (lambda: paper_kl(P / 2, Q, draft_proxy, 2, rng(0)), "target probabilities sum to 0.5"),
        (lambda: paper_kl(P, 2 * Q, draft_proxy, 2, rng(0)), "draft probabilities sum to 2"),
        (
            lambda: path_bound(np.array([[math.nan]] * 4), np.zeros((4, 1))),
            "path ratios of rollouts hold NaN",
        ),
    ],
)
def test_what_has_another_shape_or_is_no_law_is_refused(called, message):
    """Defect: laws (1, V), the shape of `logits[:, -1].softmax(-1)`, gave wrong numbers."""
    with pytest.raises(InvalidInput, match=message):
        called()
