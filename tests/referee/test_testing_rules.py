"""`assert_exact`: rules, verifiers, functions and names; what is biased fails, and says where."""

from dataclasses import dataclass

import pytest
import torch

from resispec.audit.estimate import Tuples
from resispec.core import Verdict
from resispec.errors import InvalidInput
from resispec.testing import assert_exact
from resispec.verifiers import Block, Law, Standard, Traversal, get_rule
from resispec.verifiers.recursive import Recursive

QUICK = {"draws": "iid", "vocabulary": 2000, "tuples": 400, "bias": 0.2, "samples": 6000}


def law(target_probs, draft_probs, siblings, draws):
    """The standard rule as a function."""
    return Standard().law(target_probs, draft_probs, siblings, draws)


def in_float32(target_probs, draft_probs, siblings, draws):
    assert target_probs.dtype == torch.float32
    return law(target_probs, draft_probs, siblings, draws)


class NoRelu(Recursive):
    """Renormalises |p - q| instead of (p - q)+."""

    def reshape(self, target, draft, rejected):  # noqa: ARG002 - the contract's
        return (target - draft).abs()


class CutShort(Recursive):
    """Keeps the 10 largest tokens of the residual; no vocabulary of the battery has so many."""

    def reshape(self, target, draft, rejected):  # noqa: ARG002 - the contract's
        residual = (target - draft).clamp_min(0)
        if residual.shape[-1] <= 10:
            return residual
        return torch.where(residual >= residual.topk(10).values[..., -1:], residual, 0.0)


@dataclass(frozen=True)
class WrongLast:
    """A verifier whose `verify` takes the largest token for the last one; `outcomes` knows nothing of it."""

    inner: Block

    def verify(self, tree, target_probs, draft_probs, generator):
        found = self.inner.verify(tree, target_probs, draft_probs, generator)
        if found.num_accepted < tree.topology.num_levels - 1:
            return found
        return Verdict(found.path, (*found.tokens[:-1], int(target_probs[found.path[-1]].argmax())))

    def outcomes(self, *given):
        return self.inner.outcomes(*given)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("subject", ["standard", Standard, Standard(), law])
def test_exact_rules_pass_however_they_are_named(subject, seed):
    report = assert_exact(subject, seed=seed, **QUICK)
    assert report.p_value > 1e-4 and 0 < report.smallest_bias < 0.2 and report.num_samples == 400
    assert report.subject in ("standard", "Standard", "law") and "iid: enumerated error" in str(report)


def test_all_draws_are_tried_that_a_rule_is_defined_for():
    report = assert_exact("naive", **(QUICK | {"draws": ()}))
    kinds = [line.split(":")[0] for line in report.details[:-1]]
    assert kinds == ["iid", "without_replacement", "point_mass", "greedy"]


def test_a_rule_in_float32_passes_in_float32():
    assert assert_exact(in_float32, dtype="float32", **QUICK).p_value > 1e-4


@pytest.mark.parametrize(
    ("verifier", "seed"), [(Block(), 0), (Block(), 1), (Traversal(get_rule("standard")), 0)]
)
def test_exact_verifiers_pass(verifier, seed):
    """In `block` the law of a token depends on how many are emitted, and still nothing is found."""
    assert assert_exact(verifier, seed=seed, **QUICK).p_value > 1e-4


def test_a_bias_at_a_narrow_vocabulary_is_proved():
    message = (
        r"NoRelu is not exact: iid draws, \d siblings: total variation 0\.\d+ \(allowed: 1e-05\)\n  p = \["
    )
    with pytest.raises(AssertionError, match=message):
        assert_exact(NoRelu, **QUICK)


def test_a_bias_at_a_wide_vocabulary_is_found():
    with pytest.raises(AssertionError, match="CutShort is not exact: V = 2000, iid draws, 400 tuples: total"):
        assert_exact(CutShort, **QUICK)


def test_a_verifier_that_draws_what_it_does_not_say_is_found():
    message = "WrongLast.verify is not exact(?s:.)*at the last position"
    with pytest.raises(AssertionError, match=message):
        assert_exact(WrongLast(Block()), **QUICK)


def test_too_few_tuples_are_no_test():
    with pytest.raises(
        AssertionError, match="was not tested: a rule with a bias of 0.2 passes as well(?s:.)*try tuples=80"
    ):
        assert_exact("standard", **(QUICK | {"tuples": 20}))
    assert Tuples(3, "iid", 20)  # which the estimate itself allows


def leaky(*given):
    """Loses a tenth of the residual."""
    found = law(*given)
    return Law(found.select, 0.9 * found.residual)


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    [
        (3, {}, "int is no verifier: it has neither"),
        ("best", {}, "unknown verifier 'best'; known: standard"),
        ("standard", {"draws": "best"}, "unknown draws 'best'; known: iid"),
        ("standard", {"batch": 2}, "unknown option 'batch'; known: samples"),
        (leaky, {}, "rule 'leaky': .*residual sum to 0.9; allowed: 1"),
    ],
)
def test_bad_input_is_refused(subject, options, message):
    with pytest.raises(InvalidInput, match=message):
        assert_exact(subject, **(QUICK | options))


def one_sibling(target_probs, draft_probs, siblings, draws):
    """What plain speculative decoding needs, and no more."""
    assert siblings.shape[-1] == 1
    return law(target_probs, draft_probs, siblings, draws)


def test_a_rule_for_one_sibling_is_tested_on_chains():
    assert assert_exact(one_sibling, siblings=1, **QUICK).p_value > 1e-4
    with pytest.raises(AssertionError, match="NoRelu is not exact: iid draws, tree of"):
        assert_exact(NoRelu, siblings=1, **QUICK)
