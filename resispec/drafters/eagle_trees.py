"""Growth of an EAGLE drafter's tree, a forward a level: to a fixed shape or by EAGLE-2's choice.

In both kinds of tree `grow` does not wait for the device, and `connect` makes a tree of the grown
nodes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from resispec.core import Draws, DrawsKind
from resispec.cuda_graphs import upload
from resispec.drafters.levels import inner_levels, inner_nodes
from resispec.drafters.recycled import RecycledLaws
from resispec.errors import InvalidInput
from resispec.models import EagleSession, Warp
from resispec.trees import MAX_NODES, Topology, from_child_counts


class Reading(StrEnum):
    """A way to choose candidates, and the kind of draws that the rule is told.

    POINT_MASS: the likeliest tokens, told as such (EAGLE-2).
    SOFTMAX: the likeliest tokens, told as if drawn without replacement from the drafter's softmax:
        the paper's reading, which is not true, so that no rule that uses q can be exact with it.
    SAMPLED: tokens drawn without replacement from the drafter's softmax at the sampling
        temperature, told as such (EAGLE-1).
    IID: tokens drawn independently from the same softmax, told as such.
    """

    POINT_MASS = "point_mass"
    SOFTMAX = "softmax"
    SAMPLED = "sampled"
    IID = "iid"

    @property
    def draws(self) -> DrawsKind:
        """The draws that the rule is told."""
        kinds = {Reading.POINT_MASS: Draws.POINT_MASS, Reading.IID: Draws.IID}
        return kinds.get(self, Draws.WITHOUT_REPLACEMENT)

    @property
    def is_sampled(self) -> bool:
        """Whether candidates are drawn at random instead of being the likeliest tokens."""
        return self in (Reading.SAMPLED, Reading.IID)


class Growth:
    """The speculative rows of one step.

    known: (C,) int64, committed tokens, at least the last two; the root is the last. logits: (K, V)
    of the nodes forwarded last, at first of the root. laws: for each level so far, the laws (K, V)
    that the warp makes of the logits, with the recycled laws mixed in.
    """

    def __init__(
        self,
        session: EagleSession,
        head: Callable[[Tensor], Tensor],
        predicted: Tensor,
        warp: Warp,
        known: Tensor,
        recycled: RecycledLaws,
    ) -> None:
        self._session, self._head, self._warp, self._recycled = session, head, warp, recycled
        self._visible = torch.ones(1, 0, dtype=torch.bool, device=predicted.device)
        self.laws: list[Tensor] = []
        self._read(predicted, known[-2:-1], known[-1:])

    def forward(self, tokens: Tensor, parents: Tensor) -> None:
        """Forward nodes of `tokens` (K,) below rows `parents` (K,) of the level before, both int64.

        A node sees all true rows, its ancestors and itself.
        """
        identity = torch.eye(len(tokens), dtype=torch.bool, device=tokens.device)
        self._visible = torch.cat((self._visible.index_select(0, parents), identity), 1)
        depths = torch.full_like(tokens, len(self.laws) - 1)
        features = self._features.index_select(0, parents)
        predicted = self._session.forward(tokens, features, depths, self._visible)
        self._read(predicted, self._tokens.index_select(0, parents), tokens)

    def _read(self, features: Tensor, before: Tensor, tokens: Tensor) -> None:
        self._features, self._tokens, self.logits = features, tokens, self._head(features)
        self.laws.append(self._recycled.mixed(before, tokens, self._warp.law(self.logits)))


class Grown(NamedTuple):
    """A grown tree.

    tokens: (N-1,) int64, without the root's. nodes: (I,), the nodes with children. rows: (I,), the
    places of their laws in `Growth.laws`.
    """

    topology: Topology
    tokens: Tensor
    nodes: Tensor
    rows: Tensor


class FixedTree:
    """A tree of fixed shape; its leaves are not forwarded.

    top_k, num_rows: as for `DynamicTree`.
    """

    def __init__(self, topology: Topology, reading: Reading) -> None:
        self.largest, self.reading = topology, reading
        self.top_k, self.num_rows = max(map(len, topology.children)), topology.num_nodes

    def grow(self, growth: Growth, generator: Generator) -> tuple[Tensor]:
        """Choose all nodes' children, level by level; returns the tokens (N-1,) below the root."""
        tokens = list[Tensor]()
        for level in inner_levels(self.largest, growth.logits.device):
            if tokens:
                growth.forward(tokens[-1].index_select(0, level.places), level.parents)
            if self.reading.is_sampled:
                candidates = self.reading.draws.draw(
                    growth.laws[-1], level.most_children, generator
                )
            else:  # by the logits, since many entries of a law are 0 at a low temperature
                candidates = growth.logits.topk(level.most_children, dim=-1).indices
            tokens.append(level.children(candidates))
        return (torch.cat(tokens),)

    def connect(self, tokens: Tensor) -> Grown:
        """The tree of these tokens; nodes with children were forwarded in order of their ids."""
        nodes = inner_nodes(self.largest, tokens.device)
        return Grown(self.largest, tokens, nodes, torch.arange(len(nodes), device=tokens.device))


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's tree (arXiv 2406.16858): a beam search whose likeliest candidates are kept.

    total_token: the number of verified positions, root included, so total_token - 1 nodes are
    drafted. depth: the number of the beam's forwards after the first one, so depth + 1 levels are
    drafted. top_k: the number of a node's children, and of the beam's nodes. A candidate's score is
    the sum of log-probabilities on its path, in float32 and without temperature. The tree is a
    deterministic function of the committed tokens. Raises InvalidInput for sizes that give no tree.
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
        num_drafted = min(self.total_token - 1, self.top_k + self.depth * self.top_k**2)
        num_levels = min(self.depth + 1, num_drafted)
        return from_child_counts([[num_drafted - num_levels + 1], *[[1]] * (num_levels - 1)])

    @property
    def num_rows(self) -> int:
        """The number of nodes below the root that are forwarded."""
        return self.depth * self.top_k

    def grow(self, growth: Growth, _: Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Search for the nodes of one step.

        Returns int64 tensors: the tokens (K,) of the K likeliest candidates, total_token - 1 or
        all; their places among all candidates, and their parents' forwarded rows (2, K); the places
        (R,) of the candidates that were forwarded; and whether a score is NaN (1,).
        """
        # For all candidates, by level, then parent, then rank. A parent is a forwarded row; the
        # root's is 0.
        scores: list[Tensor] = []
        tokens: list[Tensor] = []
        parents: list[Tensor] = []
        forwarded: list[Tensor] = []  # the beam's places among the candidates
        beam_scores, first_row = growth.logits.new_zeros(1, dtype=torch.float32), 0
        for depth in range(self.depth + 1):
            candidates = (
                torch.log_softmax(growth.logits.float(), -1).clamp_max(0).topk(self.top_k, dim=-1)
            )
            path_scores = (beam_scores[:, None] + candidates.values).flatten()
            rows = torch.arange(len(path_scores), device=path_scores.device) // self.top_k
            if depth < self.depth:
                beam = highest(path_scores, self.top_k)
                forwarded.append(beam + sum(len(level) for level in scores))
                growth.forward(candidates.indices.flatten()[beam], rows[beam])
                beam_scores = path_scores[beam]
            scores.append(path_scores)
            tokens.append(candidates.indices.flatten())
            parents.append(rows + first_row)
            first_row += len(candidates.values)
        all_scores = torch.cat(scores)
        places = highest(all_scores, self.total_token - 1)
        return (
            torch.cat(tokens)[places],
            torch.stack((places, torch.cat(parents)[places])),
            torch.cat(forwarded or [places[:0]]),
            all_scores.isnan().any()[None].long(),
        )

    def connect(self, tokens: Tensor, chosen: Tensor, forwarded: Tensor, is_nan: Tensor) -> Grown:
        """The tree of the nodes that `grow` returned; waits for the device once.

        Raises FloatingPointError when a law was NaN.
        """
        count = len(tokens)
        nan, *numbers = torch.cat((is_nan, chosen.flatten(), forwarded)).tolist()
        if nan:
            raise FloatingPointError("the EAGLE drafter's laws are NaN")
        node_at = {place: node for node, place in enumerate(numbers[:count], start=1)}
        # The node of every forwarded row, -1 for a row that was not kept.
        nodes = [0, *(node_at.get(place, -1) for place in numbers[2 * count :])]
        topology = Topology((-1, *(nodes[row] for row in numbers[count : 2 * count])))
        rows = [row for row, node in enumerate(nodes) if node >= 0 and topology.children[node]]
        inner = (upload(ids, tokens.device) for ids in ([nodes[row] for row in rows], rows))
        return Grown(topology, tokens, *inner)


def highest(scores: Tensor, count: int) -> Tensor:
    """The places (K,) of the `count` highest scores, ascending; of equal scores, the earlier ones.

    A path's score never rises along the path, and a parent's place is before its children's places.
    So the parent of a node among the highest is also among the highest, even with equal scores.
    """
    return scores.sort(descending=True, stable=True).indices[:count].sort().values
