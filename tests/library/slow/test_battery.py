"""Rules with other options on the whole battery, and trees of many siblings and of many shapes."""

import pytest

from resispec.audit.battery import MOST_SIBLINGS, rule_cases, tree_cases, worst
from resispec.core import Draws
from resispec.trees import complete
from resispec.verifiers import get_rule, get_verifier
from tests.library.exact_toys import RULES, assert_exact, two_level_shapes


@pytest.mark.parametrize(
    ("name", "options", "draws"),
    [
        *(case for case in RULES if case[1]),
        *(("optimal", {"bins": bins}, Draws.IID) for bins in (3, 16)),
    ],
)
def test_a_rules_emitted_law_is_the_targets(name, options, draws):
    assert worst(rule_cases(get_rule(name, **options), draws)).error < 1e-12


@pytest.mark.parametrize("name", ["traversal", "traversal_optimal", "level_optimal"])
def test_tree_verifiers_are_exact_with_many_siblings(name):
    trees = [(complete(2, 4), 4), (complete(2, MOST_SIBLINGS), 2)]
    assert worst(tree_cases(get_verifier(name), Draws.IID, trees=trees)).error < 1e-12


def test_traversal_is_exact_on_every_tree_of_two_levels_with_repeated_children():
    assert_exact(get_verifier("traversal"), Draws.IID, 2, two_level_shapes(3, 9))
