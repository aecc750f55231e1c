"""The shape of a draft tree: who is whose parent, and nothing else.

Nodes are numbered breadth first, siblings in draw order, so a level is a contiguous range and parents come before children.
The root is node 0 and stands for the last committed token; D counts it, so `complete(5, 3)` (the paper's d5b3) has 121 nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from resispec.errors import InvalidInput


@dataclass(frozen=True)
class Topology:
    """A rooted, ordered tree.

    parents: parent of every node, -1 for the root; never decreasing (breadth-first numbering).
    Raises InvalidInput when the numbering is not breadth first.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        found = self.parents[:12]
        if not self.parents or self.parents[0] != -1:
            raise InvalidInput(f"a topology starts with its root, whose parent is -1; found parents {found}")
        for node in range(1, len(self.parents)):
            if not max(0, self.parents[node - 1]) <= self.parents[node] < node:
                raise InvalidInput(
                    f"nodes are numbered breadth first; node {node} has parent {self.parents[node]}"
                )

    @property
    def num_nodes(self) -> int:
        """N, the number of verified positions, the root counted."""
        return len(self.parents)

    @property
    def num_levels(self) -> int:
        """D, the most tokens that one step can emit."""
        return len(self.levels)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every node, in draw order."""
        lists: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            lists[parent].append(node)
        return tuple(tuple(nodes) for nodes in lists)

    @cached_property
    def depths(self) -> Tensor:
        """(N,) int64, 0 for the root: a node's position is that of the root plus its depth."""
        depths = [0] * self.num_nodes
        for node, parent in enumerate(self.parents[1:], start=1):
            depths[node] = depths[parent] + 1
        return torch.tensor(depths)

    @cached_property
    def levels(self) -> tuple[range, ...]:
        """The node ids of every level, from the root down."""
        starts = torch.unique_consecutive(self.depths, return_counts=True)[1].cumsum(0).tolist()
        return tuple(range(start, stop) for start, stop in zip([0, *starts[:-1]], starts, strict=True))

    @cached_property
    def ancestors(self) -> Tensor:
        """(N, N) bool; entry (i, j) says that j is i or an ancestor of i: the attention mask among the tree's nodes."""
        mask = torch.eye(self.num_nodes, dtype=torch.bool)
        for node, parent in enumerate(self.parents[1:], start=1):
            mask[node] |= mask[parent]
        return mask

    @cached_property
    def families(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Parents grouped by their number of children: pairs (parents (G,), children (G, B)), both int64."""
        by_count: dict[int, list[int]] = {}
        for node, nodes in enumerate(self.children):
            if nodes:
                by_count.setdefault(len(nodes), []).append(node)
        return tuple(
            (torch.tensor(parents), torch.tensor([self.children[parent] for parent in parents]))
            for _, parents in sorted(by_count.items())
        )


def from_child_counts(levels: Sequence[Sequence[int]]) -> Topology:
    """Build a topology from the number of children of every node, level by level from the root.

    A level may end early: nodes that are not listed have no children. `[[3], [1, 0, 2]]` is a root with three children.
    Raises InvalidInput when a level lists more nodes than exist.
    """
    parents, level = [-1], range(1)
    for counts in levels:
        if len(counts) > len(level):
            raise InvalidInput(
                f"{len(counts)} child counts for a level of {len(level)} nodes: {list(counts)[:12]}"
            )
        start = len(parents)
        for node, count in zip(level, counts, strict=False):
            parents += [node] * count
        level = range(start, len(parents))
    return Topology(tuple(parents))


def complete(depth: int, branching: int) -> Topology:
    """The paper's `dDbB`: `depth` levels counting the root, every node above the last level with `branching` children.

    Raises InvalidInput unless both are at least 1.
    """
    if depth < 1 or branching < 1:
        raise InvalidInput(
            f"a complete tree has depth >= 1 and branching >= 1; found depth {depth}, branching {branching}"
        )
    return from_child_counts([[branching] * branching**level for level in range(depth - 1)])


def chain(num_drafted: int) -> Topology:
    """Plain speculative decoding: one path of `num_drafted` tokens below the root."""
    return complete(num_drafted + 1, 1)


def parallel_chains(num_chains: int, num_drafted: int) -> Topology:
    """`num_chains` paths of `num_drafted` tokens that branch at the root only (SpecTr's K independent drafts).

    Raises InvalidInput unless both are at least 1.
    """
    if num_chains < 1 or num_drafted < 1:
        raise InvalidInput(
            f"chains: at least 1 of at least 1 token; found {num_chains} chains of {num_drafted} tokens"
        )
    return from_child_counts([[num_chains], *[[1] * num_chains] * (num_drafted - 1)])


def from_widths(widths: Sequence[int]) -> Topology:
    """Build a topology from the number of nodes of every level below the root; `[3, 5, 2]` has 11 nodes.

    Children are spread as evenly as possible, earlier nodes first: a level that is narrower than the one above continues its
    first nodes only. Raises InvalidInput when a width is below one.
    """
    if not all(width >= 1 for width in widths):
        raise InvalidInput(f"widths of levels are at least 1; found {list(widths)[:12]}")
    above = [1, *widths[:-1]]
    return from_child_counts(
        [
            [width // over + (node < width % over) for node in range(over)]
            for over, width in zip(above, widths, strict=False)
        ]
    )


def union(shapes: Sequence[Topology]) -> Topology:
    """The smallest topology of which every given one is a part, where a part keeps the first children of a node.

    Raises InvalidInput when there is no shape.
    """
    if not shapes:
        raise InvalidInput("a union needs at least one shape; found none")
    counts: dict[
        tuple[int, ...], int
    ] = {}  # a node is the same in two shapes when its path of child ranks is
    for shape in shapes:
        ranks: list[tuple[int, ...]] = [()] * shape.num_nodes
        for node, children in enumerate(shape.children):
            counts[ranks[node]] = max(counts.get(ranks[node], 0), len(children))
            for rank, child in enumerate(children):
                ranks[child] = (*ranks[node], rank)
    levels: list[list[int]] = [[] for _ in range(max(shape.num_levels for shape in shapes))]
    for ranks_of_node in sorted(counts):
        levels[len(ranks_of_node)].append(counts[ranks_of_node])
    return from_child_counts(levels)


def root_only() -> Topology:
    """Autoregressive decoding: nothing is drafted."""
    return complete(1, 1)
