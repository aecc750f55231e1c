"""Every exact rule and verifier by enumeration: for any draft, the emitted law is the target's."""

import pytest

from resispec.audit.battery import KINDS
from resispec.core import Draws
from resispec.trees import chain, complete, from_child_counts, parallel_chains
from resispec.verifiers import get_rule, get_verifier
from tests.accounts import over_tuples, random_law, rng
from tests.library.exact_toys import DEEP, RULES, assert_exact, two_level_shapes

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize(("name", "options", "draws"), RULES)
def test_a_rules_emitted_law_is_the_targets(name, options, draws):
    """V up to 6, B up to 4, zeros in p and q; a target of mass a leaves 1 - a without a token."""
    for seed, (vocab, num_siblings, mass) in enumerate(
        [(6, 2, 1), (4, 4, 1), (4, 3, 0.4), (5, 2, 0.05), (3, 1, 0.9), (4, 2, 0)]
    ):
        for zeros in (0, 1, vocab - 1):
            p = mass * random_law(vocab, rng(seed), zeros)
            q = random_law(vocab, rng(seed + 9), zeros // 2)
            emitted, missing, _ = over_tuples(get_rule(name, **options), p, q, num_siblings, draws)
            assert (emitted - p).abs().max() < 1e-12 and missing == pytest.approx(
                1 - mass, abs=1e-12
            )


SMALL = 3 * [
    chain(2),
    complete(2, 2),
    from_child_counts([[2], [1, 0]]),
    from_child_counts([[1], [2]]),
]
# Of two tokens, so that almost every tree repeats a child.
WIDE = [
    from_child_counts([[2], [2, 0]]),
    complete(3, 2),
    from_child_counts([[3], [2, 0, 0], [0, 1]]),
]
VERIFIERS = [
    *(("standard", {}, draws, 3, SMALL) for draws in Draws),
    ("traversal_optimal", {}, Draws.IID, 3, SMALL),
    ("traversal", {}, Draws.IID, 2, [*two_level_shapes(3, 7), *DEEP]),
    *(("traversal", {}, draws, 3, two_level_shapes(3, 6)) for draws in Draws if draws != Draws.IID),
    ("traversal", {}, Draws.WITHOUT_REPLACEMENT, 2, DEEP[:-1]),
    ("traversal", {"weights": "kseq"}, Draws.IID, 2, DEEP),
    ("traversal", {"weights": "naive"}, Draws.WITHOUT_REPLACEMENT, 3, SMALL),
    ("univer", {}, Draws.GREEDY, 3, SMALL),
    (
        "gbv",
        {},
        Draws.IID,
        3,
        4 * [chain(1), chain(2), parallel_chains(2, 1), parallel_chains(2, 2)],
    ),
    (
        "gbv",
        {},
        Draws.IID,
        2,
        len(KINDS) * [parallel_chains(3, 2)] + len(KINDS) * [parallel_chains(2, 3)],
    ),
    *(("block", {}, draws, 3, 5 * [chain(1), chain(2)]) for draws in Draws),
    ("block", {}, Draws.IID, 2, len(KINDS) * [chain(4)]),
    ("level_optimal", {}, Draws.IID, 3, SMALL),
    ("level_optimal", {}, Draws.IID, 2, [*WIDE, *DEEP]),
    ("level_optimal", {"bins": 2, "classes": 2}, Draws.IID, 2, [*WIDE, *DEEP]),
]


@pytest.mark.parametrize(("name", "options", "draws", "vocab", "shapes"), VERIFIERS)
def test_a_verifiers_emitted_law_is_the_targets(name, options, draws, vocab, shapes):
    assert_exact(get_verifier(name, **options), draws, vocab, shapes)
