"""The levels of a fixed topology that are drafted from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.trees import Topology, kept_with_topology


@dataclass(frozen=True)
class Level:
    """The nodes of one level that have children, and how those are filled.

    nodes: (K,) ids. parents: (K,) places of their parents in the level above (none for the root).
    children: the next level's ids; `picks` (C,) are their places among the K x most_children draws.
    """

    nodes: Tensor
    parents: Tensor
    children: slice
    picks: Tensor
    most_children: int

    def put(self, tokens: Tensor, drawn: Tensor) -> None:
        """Write the children's tokens into those of the tree.

        tokens: (N,) int64, of the tree. drawn: (K, most_children), the draws at every node of the level.
        """
        tokens[self.children] = drawn.flatten().index_select(0, self.picks)


@kept_with_topology
def inner_levels(topology: Topology, device: torch.device) -> tuple[Level, ...]:
    """The levels that have children, from the root down."""
    levels: list[Level] = []
    above: list[int] = []
    for ids in topology.levels:
        nodes = [node for node in ids if topology.children[node]]
        if not nodes:
            break
        parents = [above.index(topology.parents[node]) for node in nodes if node]
        most = max(len(topology.children[node]) for node in nodes)
        picks = [
            row * most + rank
            for row, node in enumerate(nodes)
            for rank in range(len(topology.children[node]))
        ]
        places = [
            torch.tensor(numbers, dtype=torch.int64, device=device) for numbers in (nodes, parents, picks)
        ]
        levels.append(Level(places[0], places[1], slice(ids.stop, ids.stop + len(picks)), places[2], most))
        above = nodes
    return tuple(levels)
