"""Rules, trees and the check of exactness that several tests share."""

import itertools

import torch

from resispec.audit.battery import KINDS, pair_of_laws
from resispec.audit.enumerate import chain_law, tree_law
from resispec.core import Draws
from resispec.trees import chain, from_child_counts
from tests.accounts import rng

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


def two_level_shapes(widest, most_nodes):
    """All trees of up to `widest` children a node, two levels below the root, leaves anywhere."""
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


DEEP = [
    chain(3),
    from_child_counts([[2], [1, 1], [1, 0]]),
    from_child_counts([[1], [2], [1, 1]]),
    from_child_counts([[2], [2, 1], [0, 1, 0]]),
    from_child_counts([[2], [0, 1], [2]]),
    from_child_counts([[3], [0, 2, 1], [0, 1]]),
]
