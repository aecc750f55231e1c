"""The excess of classes of tokens on drafted trees, against the law of a step by enumeration."""

from itertools import product

import pytest
import torch

from resispec.audit.enumerate import drafted_trees, tree_law
from resispec.audit.excess import NUM_CLASSES, RATIOS, passed, token_classes, tree_excess
from resispec.core import Draws, Tree
from resispec.trees import chain, complete, from_child_counts
from resispec.verifiers import get_verifier
from resispec.verifiers.base import outcomes_of
from tests.accounts import law, random_law, rng

pytestmark = pytest.mark.numerics

UNEVEN = from_child_counts([[2], [2, 0]])
SHAPES = {"chain": chain(2), "complete": complete(3, 2), "uneven": UNEVEN}


def rows(seed):
    """Laws after each of three tokens, of a target and a draft."""
    generator = rng(seed)
    return [torch.stack([random_law(3, generator) for _ in range(3)]) for _ in range(2)]


def expected(verifier, topology, target, draft):
    """The mean of `tree_excess` over all drafted trees."""
    trees, weights = drafted_trees(topology, draft, Draws.IID)
    total = torch.zeros(NUM_CLASSES, dtype=torch.float64)
    for tokens, weight in zip(trees, weights, strict=True):
        tree = Tree(topology, tokens, Draws.IID)
        laws = target[tokens], draft[tokens]
        total += weight * tree_excess(tree, outcomes_of(verifier, tree, *laws), *laws)
    return total


def step_bias(verifier, topology, target, draft):
    """The total variation of each token of a step given those before it, added up."""
    joint, total = tree_law(verifier, topology, target, draft, Draws.IID), 0.0
    for level in range(topology.num_levels):
        upto = joint.sum(tuple(range(level + 1, joint.dim()))) if level + 1 < joint.dim() else joint
        wanted = upto.sum(-1, keepdim=True) * (target if level else target[0])
        total += float((upto - wanted).abs().sum()) / 2
    return total


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("standard", "complete"),
        *product(("traversal_optimal", "level_optimal"), ("chain", "uneven")),
    ],
)
def test_no_class_has_an_excess_under_an_exact_verifier(name, shape):
    """Verifiers of whole trees among them, whose second tokens alone are not the target's."""
    found = expected(get_verifier(name), SHAPES[shape], *rows(1))
    assert found.abs().max() < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resispec", {}),
        ("lenience", {"factor": 0.5}),
        ("typical", {}),
        ("dial", {"rule": "standard", "chance": 0.5}),
        ("dial", {"rule": "level_optimal", "chance": 0.7}),
    ],
)
def test_no_classes_have_more_excess_than_a_step_has_bias(name, options, shape):
    verifier, (target, draft) = get_verifier(name, **options), rows(2)
    found = expected(verifier, SHAPES[shape], target, draft)
    bias = step_bias(verifier, SHAPES[shape], target, draft)
    assert abs(float(found.sum())) < 1e-12
    assert bias / 2 < float(found.clamp_min(0).sum()) < bias + 1e-12


def test_the_bias_of_a_dial_on_the_standard_rule_is_the_excess_of_overdrafted_tokens():
    dial, (target, draft) = get_verifier("dial", rule="standard", chance=0.4), rows(3)
    found = expected(dial, complete(3, 2), target, draft).view(-1, len(RATIOS) + 1)
    overdrafted = float(found[:, RATIOS.index(1.0) + 1 :].sum())
    bias = step_bias(dial, complete(3, 2), target, draft)
    assert overdrafted == pytest.approx(bias, abs=1e-12) and bias > 0.01


def test_walks_reach_what_they_pass_and_classes_are_told_by_both_laws():
    """Nodes 1 and 2 are the root's children, and 3 and 4 those of node 1."""
    tree = Tree(UNEVEN, torch.zeros(5, dtype=torch.int64), Draws.IID)
    reached = passed(tree, law(0.1, 0.2, 0.3, 0.15, 0.25))
    assert torch.allclose(reached, law(1.0, 0.6, 0.3, 0.15, 0.25))
    p, q = law(0.5, 0.46, 0.04, 0.0), law(0.2, 0.46, 0.1, 0.24)
    assert token_classes(p, q).tolist() == [8, 4 + 2, 3, 3]
