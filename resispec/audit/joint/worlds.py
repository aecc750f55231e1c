"""Small worlds: p and q after every sequence of tokens, and what a tree that is drafted there holds.

A *place* is a sequence of tokens after the root, as a number: the root is 0, and token t after place x leads
to V x + 1 + t. Nodes of a drafted tree that hold the same sequence share a place, so a tree is the set of its
places: how often a sequence was drafted, and in which order, changes nothing about what can be accepted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import torch
from torch import Tensor

from resispec.audit.laws import check_rows
from resispec.errors import InvalidInput
from resispec.trees import Topology
from resispec.verifiers.base import Draws

Places = frozenset[int]
MAX_TREES = 1 << 20


@dataclass(frozen=True, eq=False)
class World:
    """Laws after every sequence of fewer than D tokens.

    target, draft: (K, V) float64, the laws at place 0, 1, ..., K - 1, level after level.
    Raises InvalidInput unless all rows are laws and the last level is complete.
    """

    target: Tensor
    draft: Tensor

    def __post_init__(self) -> None:
        check_rows("target probabilities", self.target)
        check_rows("draft probabilities", self.draft)
        if self.target.shape != self.draft.shape or self.level_starts[-1] != len(self.target):
            raise InvalidInput(
                f"a world of {tuple(self.target.shape)} target and {tuple(self.draft.shape)} draft laws; "
                "allowed: one of each after every sequence of fewer tokens than there are levels"
            )

    @property
    def vocab(self) -> int:
        """V."""
        return self.target.shape[1]

    @cached_property
    def level_starts(self) -> tuple[int, ...]:
        """The first place of every level, and of the one after the last."""
        starts = [0, 1]
        while starts[-1] < len(self.target):
            starts.append(starts[-1] * self.vocab + 1)
        return tuple(starts)

    @property
    def num_levels(self) -> int:
        """D, as of a topology."""
        return len(self.level_starts) - 1

    @cached_property
    def laws(self) -> tuple[bytes, ...]:
        """p and q at every place, as something that can be compared at once."""
        rows = zip(self.target.numpy(), self.draft.numpy(), strict=True)
        return tuple(p.tobytes() + q.tobytes() for p, q in rows)


def sequence(place: int, vocab: int) -> tuple[int, ...]:
    """The tokens that lead to a place."""
    tokens: list[int] = []
    while place:
        place, token = divmod(place - 1, vocab)
        tokens.append(token)
    return tuple(tokens[::-1])


def random_world(topology: Topology, vocab: int, sharpness: float, distance: float, seed: int) -> World:
    """A world for trees of this topology, with Dirichlet laws.

    sharpness: 1 / the Dirichlet's parameter, so 1 is uniform over all laws, and 4 has few likely tokens.
    distance: the share of q that is a law of its own; the rest is p's.
    """
    places = sum(vocab**level for level in range(topology.num_levels))
    rng = np.random.default_rng(seed)
    target, other = rng.dirichlet(np.full(vocab, 1 / sharpness), size=(2, places))
    return World(torch.from_numpy(target), torch.from_numpy(distance * other + (1 - distance) * target))


def mixtures(worlds: Sequence[World]) -> list[World]:
    """All worlds that take the laws at the root from the first of these, and elsewhere from any.

    Whoever sees some of the laws learns nothing about the others. Laws of the last level do not matter to the
    program, so those of the first world stay.
    """
    first = worlds[0]
    inner = range(1, max(1, first.level_starts[-2]))
    found = []
    for choice in product(worlds, repeat=len(inner)):
        target, draft = first.target.clone(), first.draft.clone()
        for place, world in zip(inner, choice, strict=True):
            target[place], draft[place] = world.target[place], world.draft[place]
        found.append(World(target, draft))
    return found


def check_fits(topology: Topology, world: World) -> None:
    """Raise InvalidInput unless the world has a law wherever such trees lead, or for too many trees."""
    if world.num_levels != topology.num_levels:
        raise InvalidInput(f"a world of {world.num_levels} levels; allowed: the tree's {topology.num_levels}")
    trees = world.vocab ** (topology.num_nodes - 1)
    if trees > MAX_TREES:
        raise InvalidInput(f"{trees} drafted trees to enumerate; allowed: at most {MAX_TREES}")


def drafted_places(topology: Topology, world: World, draws: Draws) -> dict[Places, float]:
    """The law of the set of places that a drafted tree holds, the root's left out.

    Subtrees of the same shape below the same place are counted once, and siblings that differ in their order
    only are counted together.
    """
    check_fits(topology, world)
    vocab, shapes = world.vocab, _shapes(topology)
    known: dict[tuple[int, int], dict[Places, float]] = {}

    def below(node: int, place: int) -> dict[Places, float]:
        key = shapes[node], place
        if key not in known:
            known[key] = _grown(node, place)
        return known[key]

    def _grown(node: int, place: int) -> dict[Places, float]:
        found: dict[Places, float] = defaultdict(float)
        for siblings, weight in _families(topology.children[node], shapes, world.draft[place], draws):
            grown: dict[Places, float] = {frozenset(): weight}
            for child, token in siblings:
                inside = vocab * place + 1 + token
                joined: dict[Places, float] = defaultdict(float)
                for places, chance in grown.items():
                    for more, chance_of_more in below(child, inside).items():
                        joined[places | more | {inside}] += chance * chance_of_more
                grown = joined
            for places, chance in grown.items():
                found[places] += chance
        return found

    return below(0, 0)


def _shapes(topology: Topology) -> list[int]:
    """A number for every node, the same for nodes whose subtrees have the same shape."""
    numbers: dict[tuple[int, ...], int] = {}
    shapes = [0] * topology.num_nodes
    for node in reversed(range(topology.num_nodes)):
        shape = tuple(sorted(shapes[child] for child in topology.children[node]))
        shapes[node] = numbers.setdefault(shape, len(numbers))
    return shapes


def _families(
    children: tuple[int, ...], shapes: list[int], draft: Tensor, draws: Draws
) -> Iterator[tuple[tuple[tuple[int, int], ...], float]]:
    """Which child holds which token, with its probability; siblings of one shape are ordered by token."""
    tuples = torch.tensor(list(product(range(len(draft)), repeat=len(children))), dtype=torch.int64)
    if not children:
        yield (), 1.0
        return
    weights = draws.weights(draft.expand(len(tuples), -1), tuples)
    merged: dict[tuple[int, ...], tuple[tuple[tuple[int, int], ...], float]] = {}
    for tokens, weight in zip(tuples.tolist(), weights.tolist(), strict=True):
        if weight > 0:
            members = sorted(zip(children, tokens, strict=True), key=lambda one: (shapes[one[0]], one[1]))
            key = tuple(token for _, token in members)
            merged[key] = tuple(members), merged.get(key, ((), 0.0))[1] + weight
    yield from merged.values()
