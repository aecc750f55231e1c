"""Topologies of draft trees: the parent of every node, and nothing else.

Nodes are numbered breadth first, siblings in draw order, so a level is a contiguous range and
parents come before children. The root is node 0 and stands for the last committed token; D counts
it, so `complete(5, 3)` (the paper's d5b3) has 121 nodes. Making a topology and asking for its sizes
takes no torch.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import accumulate, pairwise, repeat
from itertools import chain as chained
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from resispec.errors import InvalidInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAX_NODES = 16_384
"""Limit of a topology's nodes: its attention mask is N x N."""

Derived = TypeVar("Derived")
Families: TypeAlias = "tuple[tuple[Tensor, Tensor], ...]"
"""Pairs of parents (G,) and their children (G, B), both int64."""


@dataclass(frozen=True)
class Topology:
    """A rooted, ordered tree.

    parents: parent of every node, -1 for the root; never decreasing (breadth-first numbering).
    Raises InvalidInput when the numbering is not breadth first, or for more than `MAX_NODES` nodes.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(self.parents))
        _check_size("a topology", len(self.parents))
        if self.parents[:1] != (-1,):
            raise InvalidInput(
                "a topology starts with its root, whose parent is -1; found parents "
                f"{self.parents[:12]}"
            )
        for node, parent in enumerate(self.parents[1:], start=1):
            if type(parent) is not int or not max(0, self.parents[node - 1]) <= parent < node:
                raise InvalidInput(
                    f"nodes are numbered breadth first; node {node} has parent {parent!r}"
                )

    def __reduce__(self) -> tuple[type[Topology], tuple[tuple[int, ...]]]:
        """Make copies, in any process, from the parents alone, without cached tensors."""
        return Topology, (self.parents,)

    @property
    def num_nodes(self) -> int:
        """N, the number of verified positions, the root counted."""
        return len(self.parents)

    @property
    def num_levels(self) -> int:
        """D, the number of levels and the most tokens that one step can emit."""
        return len(self.levels)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every node, in draw order."""
        lists: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            lists[parent].append(node)
        return tuple(tuple(nodes) for nodes in lists)

    @cached_property
    def levels(self) -> tuple[range, ...]:
        """The node ids of every level, from the root down."""
        levels = [range(1)]
        while width := sum(len(self.children[node]) for node in levels[-1]):
            start = levels[-1].stop
            levels.append(range(start, start + width))
        return tuple(levels)

    def path_to(self, node: int) -> tuple[int, ...]:
        """The nodes from the root's child down to a node; none for the root."""
        path: list[int] = []
        while node:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    @cached_property
    def depths(self) -> Tensor:
        """The nodes' depths (N,) int64, 0 for the root; positions are the root's plus the depth."""
        import torch

        return torch.tensor([depth for depth, level in enumerate(self.levels) for _ in level])

    @cached_property
    def ancestors(self) -> Tensor:
        """The attention mask (N, N) bool: entry (i, j) says whether j is i or an ancestor of i."""
        import numpy as np
        import torch

        mask = np.eye(self.num_nodes, dtype=bool)  # a row in torch takes five times as long
        for node, parent in enumerate(self.parents[1:], start=1):
            mask[node] |= mask[parent]
        return torch.from_numpy(mask)

    @property
    def families(self) -> Families:
        """Parents by number of children: pairs of parents (G,) and children (G, B), both int64."""
        import torch

        return families_on(self, torch.device("cpu")).groups

    @cached_property
    def _kept(self) -> dict[tuple[Any, ...], Any]:
        """Values of `kept_with_topology`, by function and device."""
        return {}

    def _below(self, parents: Iterable[int]) -> list[int]:
        """The children of the given parents, in the parents' order."""
        return [child for parent in parents for child in self.children[parent]]

    def _grouped(self, nodes: range) -> list[list[int]]:
        """The nodes that have children, in groups of equal numbers of children."""
        by_count: dict[int, list[int]] = {}
        for node in nodes:
            if self.children[node]:
                by_count.setdefault(len(self.children[node]), []).append(node)
        return [parents for _, parents in sorted(by_count.items())]


def kept_with_topology(
    make: Callable[[Topology, torch.device], Derived],
) -> Callable[[Topology, torch.device], Derived]:
    """A decorator that calls `make` once per topology and device; results live with the topology.

    It is for tensors that follow from a topology: a captured graph reads them where they were at
    its capture, so they must stay in memory as long as the topology that the graph was captured
    for.
    """

    @wraps(make)
    def kept(topology: Topology, device: torch.device) -> Derived:
        values = topology._kept
        if (make, device) not in values:
            values[make, device] = make(topology, device)
        return values[make, device]

    return kept


class FamiliesOn(NamedTuple):
    """`Topology.families` on a device, in groups and joined; a parent's children lie side by side.

    parents: (I,). children: (J,). owners: (J,), the place of every child's parent among `parents`.
    ends: (I,), the place of every parent's last child among `children`. above: (N - 1,), for every
    node but the root, the place of its parent in the level above. All int64.
    """

    groups: Families
    parents: Tensor
    children: Tensor
    owners: Tensor
    ends: Tensor
    above: Tensor

    def sums(self, values: Tensor) -> Tensor:
        """Sums (I,) of values (J,) by parent, added in float64, so that order hardly matters."""
        import torch

        totals = values.cumsum(0, dtype=torch.float64).index_select(0, self.ends)
        return totals.diff(prepend=totals.new_zeros(1)).to(values.dtype)


@kept_with_topology
def families_on(topology: Topology, device: torch.device) -> FamiliesOn:
    """A topology's families on a device, sent at once: a tree's shape may change every step."""
    groups, levels = topology._grouped(range(topology.num_nodes)), topology.levels
    parents = list(chained(*groups))
    owners = [place for place, parent in enumerate(parents) for _ in topology.children[parent]]
    ends = [end - 1 for end in accumulate(len(topology.children[parent]) for parent in parents)]
    above = [topology.parents[node] - up.start for up, level in pairwise(levels) for node in level]
    tensors = _sent((parents, topology._below(parents), owners, ends, above), device)
    parent_groups = tensors[0].split(list(map(len, groups)))
    child_groups = tensors[1].split(
        [len(group) * len(topology.children[group[0]]) for group in groups]
    )
    return FamiliesOn(_pairs(parent_groups, child_groups), *tensors)


@kept_with_topology
def families_by_level_on(topology: Topology, device: torch.device) -> Families:
    """The groups of `families_on`, split by the parents' level, from the root down."""
    groups = [group for level in topology.levels for group in topology._grouped(level)]
    tensors = _sent([part for group in groups for part in (group, topology._below(group))], device)
    return _pairs(tensors[::2], tensors[1::2])


def _pairs(parents: Sequence[Tensor], children: Sequence[Tensor]) -> Families:
    return tuple(
        (row, family.view(len(row), -1)) for row, family in zip(parents, children, strict=True)
    )


def _sent(lists: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, ...]:
    """Lists of whole numbers as int64 tensors on a device."""
    from resispec.cuda_graphs import upload

    return upload([*chained(*lists)], device).split(list(map(len, lists)))


def from_child_counts(levels: Sequence[Sequence[int]]) -> Topology:
    """Build a topology from the number of children of every node, level by level from the root.

    A level may end early: nodes that are not listed have no children. `[[3], [1, 0, 2]]` is a root
    with three children. Raises InvalidInput when a level lists more nodes than exist, or for over
    `MAX_NODES` nodes.
    """
    is_list = isinstance(levels, Sequence) and not isinstance(levels, str)
    rows: Any = levels if is_list else [levels]
    parents, level = [-1], range(1)
    for row in rows:
        if not isinstance(row, Sequence) or not all(
            type(count) is int and count >= 0 for count in row
        ):
            raise InvalidInput(
                f"child counts are {reprlib.repr(row)}; allowed: a list of whole numbers from 0"
            )
        if len(row) > len(level):
            raise InvalidInput(
                f"{len(row)} child counts for a level of {len(level)} nodes: {row[:12]}"
            )
        start = len(parents)
        _check_size("a tree of these child counts", start + sum(row))
        for node, count in zip(level, row, strict=False):
            parents += [node] * count
        level = range(start, len(parents))
    return Topology(tuple(parents))


def from_widths(widths: Iterable[int], shape: str = "a tree of these widths") -> Topology:
    """Build a topology from the number of nodes of each level below the root: `[3, 5, 2]` has 11.

    Children are spread as evenly as possible, earlier nodes first: a level that is narrower than
    the one above continues its first nodes only. shape: the name of the tree in messages. Raises
    InvalidInput at the first level that makes more than `MAX_NODES` nodes.
    """
    counts, num_nodes, above = [], 1, 1
    for width in widths:
        num_nodes += width
        _check_size(shape, num_nodes)
        share, remainder = divmod(width, above)
        counts.append([share + (place < remainder) for place in range(above)])
        above = width
    return from_child_counts(counts)


def complete(depth: int, branching: int) -> Topology:
    """The paper's `dDbB`: `depth` levels, the root counted, `branching` children of inner nodes.

    Raises InvalidInput unless both are whole numbers from 1 that give at most `MAX_NODES` nodes.
    """
    _check_counts("a complete tree", depth=depth, branching=branching)
    widths = (branching**level for level in range(1, depth))
    return from_widths(widths, f"a complete tree of depth {depth}, branching {branching}")


def chain(num_drafted: int) -> Topology:
    """Plain speculative decoding: one path of `num_drafted` tokens below the root.

    Raises InvalidInput unless that is a whole number from 0 below `MAX_NODES`.
    """
    _check_counts("a chain", least=0, num_drafted=num_drafted)
    return from_widths(repeat(1, num_drafted), f"a chain of {num_drafted} drafted tokens")


def parallel_chains(num_chains: int, num_drafted: int) -> Topology:
    """`num_chains` paths of `num_drafted` tokens below the root (SpecTr's K independent drafts).

    Raises InvalidInput unless both are whole numbers from 1 that give at most `MAX_NODES` nodes.
    """
    _check_counts("parallel chains", num_chains=num_chains, num_drafted=num_drafted)
    widths = repeat(num_chains, num_drafted)
    return from_widths(widths, f"a tree of {num_chains} chains of {num_drafted} tokens")


def root_only() -> Topology:
    """Autoregressive decoding: nothing is drafted."""
    return Topology((-1,))


def union(topologies: Sequence[Topology]) -> Topology:
    """The smallest topology of which each given one is a part that keeps nodes' first children.

    Raises InvalidInput for more than `MAX_NODES` nodes.
    """
    # Two topologies share a node if the ranks of the children on its path are the same.
    counts: dict[tuple[int, ...], int] = {}
    for topology in topologies:
        ranks: list[tuple[int, ...]] = [()] * topology.num_nodes
        for node, children in enumerate(topology.children):
            counts[ranks[node]] = max(counts.get(ranks[node], 0), len(children))
            for rank, child in enumerate(children):
                ranks[child] = (*ranks[node], rank)
    levels: list[list[int]] = [
        [] for _ in range(max(topology.num_levels for topology in topologies))
    ]
    for path in sorted(counts):
        levels[len(path)].append(counts[path])
    return from_child_counts(levels)


def _check_counts(shape: str, least: int = 1, **counts: Any) -> None:
    """Raise InvalidInput unless all counts, unchecked before, are whole numbers from `least`."""
    if not all(type(count) is int and count >= least for count in counts.values()):
        numbers = ", ".join(f"{name} {count!r}" for name, count in counts.items())
        raise InvalidInput(f"{shape} takes whole numbers from {least}; found {numbers}")


def _check_size(shape: str, num_nodes: int) -> None:
    """Raise InvalidInput for too many nodes, before anything of that size is made."""
    if num_nodes > MAX_NODES:
        raise InvalidInput(
            f"{shape} has too many nodes; allowed: at most {MAX_NODES}, the root counted"
        )
