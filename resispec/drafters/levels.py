"""The levels of a fixed topology whose nodes have children to draft."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.cuda_graphs import upload
from resispec.trees import Topology, kept_with_topology


@dataclass(frozen=True)
class Level:
    """The nodes with children of one level, how they are forwarded, which draws become children.

    rows: (K,), the nodes' ids; a slice if they are consecutive, since writing to a slice is faster.
    places: (K,), the nodes' places among all nodes of the level. parents: (K,), the places of the
    nodes' parents among the level above's nodes with children (empty for the root). depths: (K,),
    the number of levels below the first drafted one. visible: (K, R) bool, whether each node sees
    each of the R nodes forwarded so far, the root not counted. picks: (C,), the places of the next
    level's nodes among the K x most_children draws.
    """

    rows: Tensor | slice
    places: Tensor
    parents: Tensor
    depths: Tensor
    visible: Tensor
    picks: Tensor
    most_children: int

    def children(self, drawn: Tensor) -> Tensor:
        """The next level's tokens (C,), from the draws (K, most_children) at this level's nodes."""
        return drawn.flatten().index_select(0, self.picks)


@kept_with_topology
def inner_levels(topology: Topology, device: torch.device) -> tuple[Level, ...]:
    """The levels that have children, from the root down."""
    levels: list[Level] = []
    above: list[int] = []
    forwarded: list[int] = []
    for depth, ids in enumerate(topology.levels[:-1]):
        nodes = [node for node in ids if topology.children[node]]
        forwarded += nodes if depth else []
        parents = [above.index(topology.parents[node]) for node in nodes if node]
        counts = [len(topology.children[node]) for node in nodes]
        width = max(counts)
        picks = [row * width + rank for row, count in enumerate(counts) for rank in range(count)]
        visible = topology.ancestors[nodes][:, forwarded].to(device)
        stop = nodes[0] + len(nodes)
        rows = slice(nodes[0], stop) if nodes[-1] < stop else upload(nodes, device)
        places, depths = [node - ids.start for node in nodes], [depth - 1] * len(nodes)
        indices = upload(places, device), upload(parents, device), upload(depths, device)
        levels.append(Level(rows, *indices, visible, upload(picks, device), width))
        above = nodes
    return tuple(levels)


@kept_with_topology
def inner_nodes(topology: Topology, device: torch.device) -> Tensor:
    """The ids (I,) int64 of the nodes that have children; they are forwarded in this order."""
    nodes = [node for node, children in enumerate(topology.children) if children]
    return upload(nodes, device)
