"""`assert_exact`: rules, verifiers, functions and names; what is biased fails, and says where."""

import re
from dataclasses import dataclass

import pytest
from faults import FAULTS

from resispec.core import Verdict
from resispec.errors import InvalidInput
from resispec.testing import assert_exact
from resispec.verifiers import Block, Law, Standard, Traversal, get_rule


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


@pytest.mark.parametrize("subject", ["standard", Standard, Standard(), law])
def test_exact_rules_pass_however_they_are_named(subject):
    report = assert_exact(subject, samples=60, seed=3)
    assert 0.01 < report.smallest_bias < 0.5
    assert report.subject in ("standard", "Standard", "law")
    assert re.fullmatch(r"\w+: iid draws: exact; no deviation in \d+ statistics; .*; seed 3", str(report))


@pytest.mark.parametrize("draws", ["without_replacement", "point_mass", "greedy"])
def test_other_draws(draws):
    assert f"{draws} draws: exact" in str(assert_exact("standard", draws=draws, samples=60))


@pytest.mark.parametrize("verifier", [Block(), Traversal(get_rule("standard"))])
def test_exact_verifiers_pass(verifier):
    assert_exact(verifier, samples=60)


def test_a_bias_at_a_narrow_vocabulary_is_proved():
    """All lines of the message but the numbers."""
    message = (
        r"resispec is not exact: iid draws, seed=0, samples=60\n"
        r"  enumerated total variation 0\.\d+; an exact rule stays below 1e-05\n"
        r"(  .*\n)*  a [\w =-]+ pair, \d siblings:\n  p = \[.*\]\n  q = \[.*\]"
    )
    with pytest.raises(AssertionError) as error:
        assert_exact("resispec", samples=60)
    assert re.fullmatch(message, str(error.value))
    assert_exact("resispec", draws="point_mass", samples=60)  # where it is the standard rule


@pytest.mark.parametrize(
    ("fault", "samples", "reason"),
    [
        (
            "residual cut to its top 100",
            400,
            r"total variation \(V = 32,000\) 0\.\d+, \d+\.\d standard errors",
        ),
        ("bonus token at T = .8", 250, r"simulation \(surprisal, wide\): counts of \d+ outcomes"),
    ],
)
def test_planted_faults_are_found_that_enumeration_does_not_see(fault, samples, reason):
    """Those of tests/faults, in which the audit itself is tested."""
    with pytest.raises(AssertionError, match=reason) as error:
        assert_exact(FAULTS[fault].make(), samples=samples)
    assert "enumerated" not in str(error.value) and "p = [" not in str(error.value)


def test_a_verifier_that_draws_what_it_does_not_say_is_found():
    with pytest.raises(AssertionError, match=r"WrongLast is not exact(?s:.)*simulation \(verdicts, near\)"):
        assert_exact(WrongLast(Block()), samples=200)


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
        ("kseq", {"draws": "greedy"}, "kseq is not exact for draws 'greedy'; supported: iid"),
        ("standard", {"samples": 9}, "samples is 9; allowed: at least 10"),
        (leaky, {}, "rule 'leaky': .*residual sum to 0.9; allowed: 1"),
    ],
)
def test_bad_input_is_refused(subject, options, message):
    with pytest.raises(InvalidInput, match=message):
        assert_exact(subject, **({"samples": 60} | options))


def one_sibling(target_probs, draft_probs, siblings, draws):
    """What plain speculative decoding needs, and no more."""
    assert siblings.shape[-1] == 1
    return law(target_probs, draft_probs, siblings, draws)


def test_a_rule_for_one_sibling_is_tested_on_chains():
    assert "iid draws: exact" in str(assert_exact(one_sibling, chain=True, samples=60))
    with pytest.raises(AssertionError, match=r"resispec is not exact(?s:.)*tree of \d nodes:\n"):
        assert_exact("resispec", chain=True, samples=60)
