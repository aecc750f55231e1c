"""Every exact rule and verifier on the audit's whole battery, of which `make test` enumerates a part."""

import itertools

import pytest
from accounts import rng
from test_rules import RULES
from test_traversal import assert_exact, rows_of, two_level_shapes
from test_tree_verifiers import EXACT

from resispec.audit.battery import KINDS, worst_error, worst_tree_error
from resispec.core import Draws
from resispec.verifiers import get_rule, get_verifier


@pytest.mark.parametrize(("name", "options", "draws"), RULES)
def test_a_rules_emitted_law_is_the_targets(name, options, draws):
    assert worst_error(get_rule(name, **options), draws).error < 1e-12


@pytest.mark.parametrize("bins", [0, 2, 3, 16])
def test_the_optimal_rule_is_exact_for_any_grouping(bins):
    assert worst_error(get_rule("optimal", bins=bins), Draws.IID).error < 1e-13


@pytest.mark.parametrize(("name", "options", "draws"), EXACT)
def test_a_verifiers_emitted_law_is_the_targets(name, options, draws):
    assert worst_tree_error(get_verifier(name, **options), draws).error < 1e-12


def test_traversal_is_exact_on_every_tree_of_two_levels_with_repeated_children():
    generator = rng(1)
    for topology, kind in zip(two_level_shapes(3, 9), itertools.cycle(KINDS), strict=False):
        assert_exact(get_verifier("traversal"), topology, rows_of(kind, 2, generator), Draws.IID)
