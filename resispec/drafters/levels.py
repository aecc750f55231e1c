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
    picks: (C,) places of the next level's nodes among the K x most_children draws; children: their ids.
    """

    nodes: Tensor
    parents: Tensor
    picks: Tensor
    children: slice
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
        counts = [len(topology.children[node]) for node in nodes]
        most = max(counts)
        picks = [row * most + rank for row, count in enumerate(counts) for rank in range(count)]
        columns = (torch.tensor(column, dtype=torch.int64) for column in (nodes, parents, picks))
        placed = [column.to(device) for column in columns]
        children = slice(ids.stop, ids.stop + len(picks))
        levels.append(Level(placed[0], placed[1], placed[2], children, most))
        above = nodes
    return tuple(levels)
