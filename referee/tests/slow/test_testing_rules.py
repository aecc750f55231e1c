"""`assert_exact`: rules, verifiers, functions and names; what is biased fails, and says where."""

import re

import pytest

from referee.testing import assert_exact
from resispec.audit.battery import TREES
from resispec.draws import Hub
from resispec.verifiers import Block, SpecHub, Standard
from resispec.verifiers.base import Law
from tests.faults import FAULTS


@pytest.fixture(autouse=True)
def fewer_trees(monkeypatch):
    """Few trees are enumerated: ways to give a subject are tested here, trees in test_exact.py."""
    monkeypatch.setattr("resispec.audit.battery.TREES", TREES[:4])


class HalfHub(SpecHub):
    """It is right for one sibling and wrong for a pair."""

    def law(self, target_probs, draft_probs, siblings, draws):
        law = super().law(target_probs, draft_probs, siblings, draws)
        return law if siblings.shape[-1] == 1 else Law(law.select, target_probs)


def test_draws_that_are_not_registered_are_tested_with_siblings():
    with pytest.raises(AssertionError, match="HalfHub is biased: hub draws"):
        assert_exact(HalfHub(), draws=Hub(), samples=60)


@pytest.mark.parametrize(
    ("subject", "draws", "name"),
    [
        *(
            ("standard", "greedy", "standard"),
            (Standard, "iid", "Standard"),
            (Block(), "iid", "Block"),
        ),
        *(("gbv", "iid", "gbv"), (SpecHub, Hub(), "SpecHub")),  # neither is defined on all trees
    ],
)
def test_exact_subjects_pass_however_they_are_given(subject, draws, name):
    report = assert_exact(subject, draws=draws, samples=60, seed=3)
    assert 0.01 < report.smallest_bias < 0.5 and report.subject == name
    assert re.fullmatch(
        rf"{name}: {draws} draws: no bias seen; exact where .*; no deviation in \d+ statistics; "
        r".*; seed 3",
        str(report),
    )


def test_planted_faults_are_found_that_enumeration_does_not_see():
    """Two of those of tests/faults, in which the audit itself is tested."""
    reason = r"simulation \(tokens, deep\): counts of \d+ outcomes"
    with pytest.raises(AssertionError, match=reason) as error:
        assert_exact(FAULTS["bonus token from the root's law"].make(), samples=20)
    assert "enumerated" not in str(error.value) and "p = [" not in str(error.value)
    with pytest.raises(AssertionError, match=r"2 siblings of 32,000$"):
        assert_exact(FAULTS["acceptance times 1.02 (V > 5)"].make(), samples=60)


def test_a_failure_on_chains_shows_the_laws():
    message = (
        r"^resispec is biased: iid draws, seed=0, samples=60\n"
        r"  enumerated total variation 0\.\d+; an exact rule stays below 1e-05\n"
        r"(  .*\n)*  a [\w =-]+ pair, 1 siblings:\n  p = \[.*\]\n  q = \[.*\]$"
    )
    with pytest.raises(AssertionError, match=message):
        assert_exact("resispec", chain=True, samples=60)
