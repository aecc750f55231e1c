"""Growth of an EAGLE drafter's tree: a forward a level, and EAGLE-2's choice of nodes (arXiv 2406.16858)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from resispec.cuda_graphs import upload
from resispec.errors import InvalidInput
from resispec.models import EagleSession, Warp
from resispec.trees import MAX_NODES, Topology, from_child_counts


class Growth:
    """The speculative rows of one step.

    logits: (K, V) of the nodes forwarded last, at first of the root. laws: the same of every level in turn,
    as the warp makes it.
    """

    def __init__(
        self, session: EagleSession, head: Callable[[Tensor], Tensor], predicted: Tensor, warp: Warp
    ) -> None:
        self._session, self._head, self._warp = session, head, warp
        self._visible = torch.ones(1, 0, dtype=torch.bool, device=predicted.device)
        self.laws: list[Tensor] = []
        self._read(predicted)

    def forward(self, tokens: Tensor, parents: Tensor) -> None:
        """Forward K nodes with these tokens, each below row `parents` (K,) of the level before; both int64.

        A node sees all true rows, its ancestors and itself.
        """
        itself = torch.eye(len(tokens), dtype=torch.bool, device=tokens.device)
        self._visible = torch.cat((self._visible.index_select(0, parents), itself), 1)
        depths = torch.full_like(tokens, len(self.laws) - 1)
        features = self._features.index_select(0, parents)
        self._read(self._session.forward(tokens, features, depths, self._visible))

    def _read(self, features: Tensor) -> None:
        self._features, self.logits = features, self._head(features)
        self.laws.append(self._warp.law(self.logits))


@dataclass(frozen=True)
class Grown:
    """A grown tree.

    tokens: (N-1,) int64, without the root's. nodes: (I,) those with children; rows: (I,) their places in
    `Growth.laws`.
    """

    topology: Topology
    tokens: Tensor
    nodes: Tensor
    rows: Tensor


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's tree: a beam search, of whose candidates the likeliest stay.

    total_token: verified positions, the root counted, so total_token - 1 drafted nodes. depth: forwards of
    the beam after the first, so depth + 1 drafted levels. top_k: children of a node, and nodes of the beam. A
    candidate's score is the sum of log-probabilities on its path, in float32 and without temperature.
    Everything is deterministic given the committed tokens. Raises InvalidInput for sizes that give no tree.
    """

    total_token: int
    depth: int
    top_k: int

    def __post_init__(self) -> None:
        limits = ((self.total_token, 2), (self.depth, 0), (self.top_k, 1))
        if not all(type(size) is int and least <= size <= MAX_NODES for size, least in limits):
            raise InvalidInput(
                "a dynamic tree has total_token >= 2, depth >= 0 and top_k >= 1; "
                f"found {self}; allowed: whole numbers up to {MAX_NODES}"
            )

    @cached_property
    def largest(self) -> Topology:
        """A tree with as many nodes and levels as any that grows."""
        drafted = min(self.total_token - 1, self.top_k + self.depth * self.top_k**2)
        levels = min(self.depth + 1, drafted)
        return from_child_counts([[drafted - levels + 1], *[[1]] * (levels - 1)])

    @property
    def num_rows(self) -> int:
        """Nodes that are forwarded below the root."""
        return self.depth * self.top_k

    def grow(self, growth: Growth) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Search for the nodes of one step, without waiting for the device; `connect` makes a tree of them.

        Returns, of the K = total_token - 1 likeliest candidates: their tokens (K,); their places among all
        candidates and the forwarded rows below which they grew (2, K); the places of the rows that were
        forwarded below the root (R,); and whether a score is NaN (1,). All int64.
        """
        # Of all candidates, by level, then parent, then rank. Parents are forwarded rows, the root's is 0.
        scores: list[Tensor] = []
        tokens: list[Tensor] = []
        parents: list[Tensor] = []
        forwarded: list[Tensor] = []  # the beam's places among the candidates
        beam_scores, first_row = growth.logits.new_zeros(1, dtype=torch.float32), 0
        for depth in range(self.depth + 1):
            best = torch.log_softmax(growth.logits.float(), -1).clamp_max(0).topk(self.top_k, dim=-1)
            summed = (beam_scores[:, None] + best.values).flatten()
            rows = torch.arange(len(summed), device=summed.device) // self.top_k
            if depth < self.depth:
                beam = highest(summed, self.top_k)
                forwarded.append(beam + sum(len(level) for level in scores))
                growth.forward(best.indices.flatten()[beam], rows[beam])
                beam_scores = summed[beam]
            scores.append(summed)
            tokens.append(best.indices.flatten())
            parents.append(rows + first_row)
            first_row += len(best.values)
        every = torch.cat(scores)
        chosen = highest(every, self.total_token - 1)
        return (
            torch.cat(tokens)[chosen],
            torch.stack((chosen, torch.cat(parents)[chosen])),
            torch.cat(forwarded or [chosen[:0]]),
            every.isnan().any()[None].long(),
        )


def highest(scores: Tensor, count: int) -> Tensor:
    """Places of the `count` highest scores (K,), in ascending order; of equal scores the earlier ones.

    A path's score never rises, and a parent's place is before its children's: so whoever is among the highest
    has its parent there, ties or not.
    """
    return scores.sort(descending=True, stable=True).indices[:count].sort().values


def connect(tokens: Tensor, chosen: Tensor, forwarded: Tensor, is_nan: Tensor) -> Grown:
    """The tree of `DynamicTree.grow`'s result; it waits for the device once.

    Raises FloatingPointError when a law was NaN.
    """
    count = len(tokens)
    numbers = torch.cat((is_nan, chosen.flatten(), forwarded)).tolist()
    if numbers[0]:
        raise FloatingPointError("the EAGLE drafter's laws are NaN")
    places, parents, beams = (
        numbers[1 : count + 1],
        numbers[count + 1 : 2 * count + 1],
        numbers[2 * count + 1 :],
    )
    node_at = {place: node for node, place in enumerate(places, start=1)}
    # The node of every forwarded row, -1 where it was not kept.
    nodes = [0, *(node_at.get(place, -1) for place in beams)]
    topology = Topology((-1, *(nodes[row] for row in parents)))
    rows = [row for row, node in enumerate(nodes) if node >= 0 and topology.children[node]]
    device = tokens.device
    return Grown(topology, tokens, upload([nodes[row] for row in rows], device), upload(rows, device))
