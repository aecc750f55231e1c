"""The levels of a fixed topology that are drafted from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.trees import Topology, kept_with_topology


@dataclass(frozen=True)
class Level:
    """The nodes of one level that have children, how they are forwarded, and which draws their children get.

    rows: (K,) their ids, a slice where they lie side by side, which is written to faster. places: (K,) theirs
    among all nodes of the level. parents: (K,) places of their parents among those of the level above that
    have children (none for the root). depths: (K,) levels below the first drafted one. visible: (K, R) bool,
    which of all levels' nodes so far each sees, the root left out. picks: (C,) places of the next level's
    nodes among the K x most_children draws.
    """

    rows: Tensor | slice
    places: Tensor
    parents: Tensor
    depths: Tensor
    visible: Tensor
    picks: Tensor
    most_children: int

    def children(self, drawn: Tensor) -> Tensor:
        """The tokens (C,) of the next level, from the draws (K, most_children) at every node of this one."""
        return drawn.flatten().index_select(0, self.picks)


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
        width = max(counts)
        picks = [row * width + rank for row, count in enumerate(counts) for rank in range(count)]
        visible = topology.ancestors[nodes][:, forwarded].to(device)
        stop = nodes[0] + len(nodes)
        rows = slice(nodes[0], stop) if nodes[-1] < stop else placed(nodes)
        places, depths = [node - ids.start for node in nodes], [depth - 1] * len(nodes)
        indices = placed(places), placed(parents), placed(depths)
        levels.append(Level(rows, *indices, visible, placed(picks), width))
        above = nodes
    return tuple(levels)


@kept_with_topology
def inner_nodes(topology: Topology, device: torch.device) -> Tensor:
    """The ids (I,) int64 of the nodes that have children; they are forwarded in this order."""
    nodes = [node for node, children in enumerate(topology.children) if children]
    return torch.tensor(nodes, dtype=torch.int64, device=device)
