"""Every exact rule and verifier by enumeration: whatever is drafted,
the emitted law is the target's.
"""

import itertools

import pytest
import torch
from accounts import over_tuples, random_law, rng

from resispec.audit.battery import KINDS, pair_of_laws
from resispec.audit.enumerate import chain_law, tree_law
from resispec.core import Draws
from resispec.trees import chain, complete, from_child_counts, parallel_chains
from resispec.verifiers import get_rule, get_verifier

pytestmark = pytest.mark.numerics

SUPPORTED = {
    "standard": tuple(Draws),
    "naive": tuple(Draws),
    "kseq": (Draws.IID,),
    "greedy": (Draws.GREEDY,),
    "optimal": (Draws.IID,),
    "khisti": (Draws.IID,),
}
RULES = [
    *((name, {}, draws) for name, every in SUPPORTED.items() for draws in every),
    *(("optimal", {"bins": bins}, Draws.IID) for bins in (0, 2)),
    ("khisti", {"size": 1}, Draws.IID),
    ("khisti", {"size": 3}, Draws.IID),
]


@pytest.mark.parametrize(("name", "options", "draws"), RULES)
def test_a_rules_emitted_law_is_the_targets(name, options, draws):
    """V up to 6, B up to 4, zeros in p and q; and a target of mass a: V gets a p,
    and no token gets 1 - a.
    """
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


def two_level_shapes(widest, most_nodes):
    """Every tree with up to `widest` children a node on two levels below the root;
    leaves at any depth.
    """
    counts = (
        row for width in (1, 2, 3) for row in itertools.product(range(widest + 1), repeat=width)
    )
    shapes = [from_child_counts([[len(row)], list(row)]) for row in counts]
    return [shape for shape in shapes if shape.num_nodes <= most_nodes]


def assert_exact(verifier, draws, vocab, shapes):
    """On every shape, with laws of one kind after another."""
    generator = rng(2)
    for topology, kind in zip(shapes, itertools.cycle(KINDS), strict=False):
        rows = [pair_of_laws(kind, vocab, generator) for _ in range(vocab)]
        target, draft = (torch.stack(laws) for laws in zip(*rows, strict=True))
        error = tree_law(verifier, topology, target, draft, draws) - chain_law(
            target, topology.num_levels
        )
        assert error.abs().max() < 1e-12, (kind, topology)


SMALL = 3 * [
    chain(2),
    complete(2, 2),
    from_child_counts([[2], [1, 0]]),
    from_child_counts([[1], [2]]),
]
DEEP = [
    chain(3),
    from_child_counts([[2], [1, 1], [1, 0]]),
    from_child_counts([[1], [2], [1, 1]]),
    from_child_counts([[2], [2, 1], [0, 1, 0]]),
    from_child_counts([[2], [0, 1], [2]]),
    from_child_counts([[3], [0, 2, 1], [0, 1]]),
]
# Of two tokens, so that almost every tree repeats a child.
WIDE = [
    from_child_counts([[2], [2, 0]]),
    complete(3, 2),
    from_child_counts([[3], [2, 0, 0], [0, 1]]),
]
VERIFIERS = [
    *(("standard", {}, draws, 3, SMALL) for draws in Draws),
    *(("naive", {}, draws, 3, SMALL) for draws in (Draws.IID, Draws.GREEDY)),
    *((name, {}, Draws.IID, 3, SMALL) for name in ("kseq", "optimal", "traversal_optimal")),
    ("greedy", {}, Draws.GREEDY, 3, SMALL),
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
