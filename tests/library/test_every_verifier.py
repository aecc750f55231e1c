"""Every registered verifier: a new file in resispec/verifiers/ is tested without a list to edit."""

import pytest
import torch

from resispec.audit.battery import is_defined_on, shown_bias, tree_cases, worst
from resispec.core import Draws
from resispec.trees import chain, complete
from resispec.verifiers import Law, as_verifier, available, get_verifier
from tests.accounts import assert_drawn_from, drafted, rng

pytestmark = pytest.mark.numerics

TREES = [(chain(2), 3), (chain(3), 2), (complete(2, 2), 3)]
DEFINED = [
    (name, draws, trees)
    for name in available()
    for draws in Draws
    if (trees := [tree for tree in TREES if is_defined_on(get_verifier(name), draws, tree[0])])
]


@pytest.mark.parametrize(("name", "draws", "trees"), DEFINED)
def test_a_verifier_is_exact_or_its_bias_is_shown_to_its_users(name, draws, trees):
    verifier = get_verifier(name)
    error = worst(tree_cases(verifier, draws, trees=trees)).error
    assert (error < 1e-9) == (shown_bias(verifier, draws) is None), error


@pytest.mark.parametrize(("name", "draws", "trees"), DEFINED)
def test_a_verifier_draws_its_verdicts_from_its_law(name, draws, trees):
    tree, target, draft = drafted(trees[-1][0], 4, draws, seed=5)
    verifier, generator = get_verifier(name), rng(1)
    outcomes = verifier.outcomes(tree, target, draft)
    assert_drawn_from(outcomes, lambda: verifier.verify(tree, target, draft, generator), 200)


def test_every_registered_verifier_is_tested_with_some_draws():
    assert {name for name, *_ in DEFINED} == {*available()}


def test_the_likeliest_tokens_told_as_drawn_bias_every_rule_that_uses_q():
    """The paper's reading of EAGLE's candidates. Defect: such rows were marked as not audited."""
    drawn = Draws.WITHOUT_REPLACEMENT
    for name, is_biased in (("standard", True), ("resispec", True), ("naive", False)):
        found = shown_bias(get_verifier(name), drawn, are_likeliest=True)
        assert (found is not None) is is_biased, name
    assert "where siblings are the draft's likeliest tokens, told as" in shown_bias(
        get_verifier("standard"), drawn, are_likeliest=True
    )


def test_an_error_at_two_siblings_hides_no_bias_at_one():
    class FirstAlone:
        def law(self, target_probs, _, siblings, __):
            if siblings.shape[-1] > 1:
                raise ValueError("two")
            return Law(torch.ones_like(siblings, dtype=target_probs.dtype), target_probs)

    assert "FirstAlone is biased" in shown_bias(as_verifier(FirstAlone()), Draws.IID)
