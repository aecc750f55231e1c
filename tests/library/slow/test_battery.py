"""Every exact rule and verifier on the audit's whole battery, of which `make test` enumerates a part."""

import pytest
from test_exact import RULES, VERIFIERS, assert_exact, two_level_shapes

from resispec.audit.battery import CHAINS, TREES, worst_error, worst_tree_error
from resispec.core import Draws
from resispec.verifiers import get_rule, get_verifier


@pytest.mark.parametrize(
    ("name", "options", "draws"), [*RULES, *(("optimal", {"bins": bins}, Draws.IID) for bins in (3, 16))]
)
def test_a_rules_emitted_law_is_the_targets(name, options, draws):
    assert worst_error(get_rule(name, **options), draws).error < 1e-12


CASES = {repr(case[:3]): case[:3] for case in VERIFIERS}


@pytest.mark.parametrize(("name", "options", "draws"), CASES.values(), ids=CASES)
def test_a_verifiers_emitted_law_is_the_targets(name, options, draws):
    trees = CHAINS if name == "block" else TREES
    assert worst_tree_error(get_verifier(name, **options), draws, trees=trees).error < 1e-12


def test_traversal_is_exact_on_every_tree_of_two_levels_with_repeated_children():
    assert_exact(get_verifier("traversal"), Draws.IID, 2, two_level_shapes(3, 9))
