"""The levels of a fixed topology that are drafted from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.trees import Topology, kept_with_topology


@dataclass(frozen=True)
class Level:
    """The nodes of one level that have children, how they are forwarded, and how their children are filled.

    nodes: (K,) ids. parents: (K,) places of their parents in the level above (none for the root). picks: (C,)
    places of the next level's nodes among the K x most_children draws; children: their ids. visible: (K, R)
    bool, which of all levels' nodes so far each sees, the root left out.
    """

    nodes: Tensor
    parents: Tensor
    picks: Tensor
    visible: Tensor
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
    forwarded: list[int] = []

    def placed(numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    for depth, ids in enumerate(topology.levels):
        nodes = [node for node in ids if topology.children[node]]
        if not nodes:
            break
        forwarded += nodes if depth else []
        parents = [above.index(topology.parents[node]) for node in nodes if node]
        counts = [len(topology.children[node]) for node in nodes]
        most = max(counts)
        picks = [row * most + rank for row, count in enumerate(counts) for rank in range(count)]
        visible = topology.ancestors[nodes][:, forwarded].to(device)
        children = slice(ids.stop, ids.stop + len(picks))
        levels.append(Level(placed(nodes), placed(parents), placed(picks), visible, children, most))
        above = nodes
    return tuple(levels)
