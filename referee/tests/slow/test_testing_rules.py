"""`assert_exact`: rules, verifiers, functions and names; what is biased fails, and says where."""

import re
from dataclasses import dataclass

import pytest
from faults import FAULTS

from referee.testing import assert_exact
from resispec.core import Verdict
from resispec.verifiers import Block, Standard, Traversal, get_rule


def law(target_probs, draft_probs, siblings, draws):
    """The standard rule as a function."""
    return Standard().law(target_probs, draft_probs, siblings, draws)


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


@pytest.mark.parametrize("subject", ["standard", Standard, law])
def test_exact_rules_pass_however_they_are_named(subject):
    report = assert_exact(subject, samples=60, seed=3)
    assert 0.01 < report.smallest_bias < 0.5
    assert report.subject in ("standard", "Standard", "law")
    assert re.fullmatch(
        r"\w+: iid draws: no bias seen; exact where .*; no deviation in \d+ statistics; .*; seed 3",
        str(report),
    )


@pytest.mark.parametrize(
    ("subject", "draws"),
    [
        ("standard", "without_replacement"),
        ("standard", "point_mass"),
        ("standard", "greedy"),
        (Block(), "iid"),
        (Traversal(get_rule("standard")), "iid"),
    ],
)
def test_other_draws_and_verifiers(subject, draws):
    assert f"{draws} draws: no bias seen" in str(assert_exact(subject, draws=draws, samples=60))


def test_planted_faults_are_found_that_enumeration_does_not_see():
    """One of those of tests/faults, in which the audit itself is tested."""
    reason = r"simulation \(token surprisal, wide\): counts of \d+ outcomes"
    with pytest.raises(AssertionError, match=reason) as error:
        assert_exact(FAULTS["bonus token at T = .8"].make(), samples=250)
    assert "enumerated" not in str(error.value) and "p = [" not in str(error.value)


def test_a_bias_of_wide_laws_is_told_without_masses_and_a_verifier_that_draws_otherwise_is_found():
    with pytest.raises(AssertionError, match=r"2 siblings of 32,000$"):
        assert_exact(FAULTS["acceptance times 1.02 (V > 5)"].make(), samples=60)
    message = r"WrongLast is (?:biased|inconsistent)(?s:.)*simulation \(verdicts, near\)"
    with pytest.raises(AssertionError, match=message):
        assert_exact(WrongLast(Block()), samples=200)


def one_sibling(target_probs, draft_probs, siblings, draws):
    """The needs of plain speculative decoding, and no more."""
    assert siblings.shape[-1] == 1
    return law(target_probs, draft_probs, siblings, draws)


def test_a_rule_for_one_sibling_is_tested_on_chains():
    assert "iid draws: no bias seen" in str(assert_exact(one_sibling, chain=True, samples=60))
    with pytest.raises(AssertionError, match=r"resispec is biased(?s:.)* pair, 1 siblings:\n"):
        assert_exact("resispec", chain=True, samples=60)
