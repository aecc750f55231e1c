"""EAGLE as a drafter: candidates from features that the target has computed anyway.

arXiv 2401.15077, 2406.16858, 2503.01840. Between steps the drafter's cache holds only rows of true features;
what a step speculates is forgotten at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Generator, Tensor

from resispec.core import Draft, Draws, Tree, Verdict
from resispec.cuda_graphs import as_unit, upload
from resispec.drafters.base import DraftSession
from resispec.drafters.eagle_trees import DynamicTree, Grown, Growth, connect
from resispec.drafters.levels import inner_levels
from resispec.drafters.no_draft import NoDraft
from resispec.errors import InvalidInput
from resispec.models import Pair, Warp
from resispec.trees import Topology, root_only


class Reading(StrEnum):
    """A choice of candidates, and the draws that the rule is told.

    POINT_MASS: the likeliest tokens, told as such (EAGLE-2).
    SOFTMAX: the same tokens, told as if drawn without replacement from the drafter's softmax: the paper's
        reading, which is not true, so that no rule can be exact with it.
    SAMPLED: drawn without replacement from the drafter's softmax at the sampling temperature, and told so
        (EAGLE-1).
    """

    POINT_MASS = "point_mass"
    SOFTMAX = "softmax"
    SAMPLED = "sampled"

    @property
    def draws(self) -> Draws:
        """The draws that the rule is told."""
        return Draws.POINT_MASS if self is Reading.POINT_MASS else Draws.WITHOUT_REPLACEMENT


@dataclass(frozen=True)
class Eagle:
    """Drafts with the pair's EAGLE model.

    tree: a fixed topology, or EAGLE-2's dynamic tree. reading: see `Reading`; in each of them the draft's
    `probs` are the drafter's softmax at the sampling temperature. Raises InvalidInput for sampled candidates
    in a dynamic tree: it keeps them by their scores, so those that stay would not have the drafter's law.
    """

    tree: Topology | DynamicTree
    reading: Reading = Reading.POINT_MASS

    def __post_init__(self) -> None:
        if not isinstance(self.tree, Topology | DynamicTree):
            raise InvalidInput(f"EAGLE drafts a topology or a dynamic tree; found {self.tree!r}")
        if self.reading not in list(Reading):
            raise InvalidInput(f"unknown reading {self.reading!r}; allowed: {', '.join(Reading)}")
        object.__setattr__(self, "reading", Reading(self.reading))  # a config gives the plain word
        if self.reading is Reading.SAMPLED and isinstance(self.tree, DynamicTree):
            raise InvalidInput(
                "sampled candidates need a tree of fixed shape; found a dynamic one, which prunes by score"
            )

    @property
    def topology(self) -> Topology:
        """A tree with as many nodes and levels as any that this drafter proposes."""
        return self.tree.largest if isinstance(self.tree, DynamicTree) else self.tree

    @property
    def most_children(self) -> int:
        """Candidates under one parent, at most."""
        return self.tree.top_k if isinstance(self.tree, DynamicTree) else max(map(len, self.tree.children))

    @property
    def num_rows(self) -> int:
        """Rows that one step speculates, at most."""
        return self.tree.num_rows if isinstance(self.tree, DynamicTree) else self.tree.num_nodes

    def session(self, pair: Pair, warp: Warp, capacity: int) -> DraftSession:
        """See `Drafter.session`.

        Raises InvalidInput without an EAGLE model, or for more candidates of one parent than tokens.
        """
        if self.topology.num_nodes == 1:
            return NoDraft().session(pair, warp, capacity)
        if self.most_children > (size := pair.eagle_model().num_draftable):
            raise InvalidInput(
                f"{self.most_children} candidates of one parent; the vocabulary has {size} tokens"
            )
        return _EagleDrafts(self, pair, warp, capacity)


class _EagleDrafts:
    """The drafter's cache, and the committed tokens and true features that are not in it yet."""

    def __init__(self, drafter: Eagle, pair: Pair, warp: Warp, capacity: int) -> None:
        self._drafter, self._head, self._warp = drafter, pair.eagle_head(), warp
        self._session = pair.eagle_model().session(capacity, drafter.num_rows)
        self._speculate = as_unit(self._speculated, self._session.device)
        self._tokens: Sequence[int] = ()
        self._features: Tensor | None = None

    def prefill(self, prompt: list[int], features: Tensor | None) -> None:
        """Cache what is known but the last row, whose token is the first root."""
        self._session.clear()
        self._features = None
        if features is not None:
            if len(prompt) > 2:
                self._session.extend(upload(prompt[1:-1], self._session.device), features[:-1])
            self._tokens, self._features = prompt[-1:], features[-1:]

    def draft(self, root: int, generator: Generator) -> Draft:
        """Catch up with the committed tokens (the last is `root`), then speculate; one forward a level.

        A prompt of one token has no feature to draft from: its first tree is the root alone. Raises
        FloatingPointError when a law that decides about a dynamic tree is NaN.
        """
        device = self._session.device
        if self._features is None:
            return Draft(
                Tree(root_only(), upload([root], device), Draws.IID), torch.empty(1, 0, device=device)
            )
        tree = self._drafter.tree
        committed = upload(self._tokens, device)
        laws, *parts = self._speculate(generator, committed, self._features)
        grown = connect(*parts) if isinstance(tree, DynamicTree) else filled(tree, *parts)
        tokens = torch.cat((committed[-1:], grown.tokens))
        probs = laws.new_empty(len(tokens), laws.shape[1]).index_copy_(
            0, grown.nodes, laws.index_select(0, grown.rows)
        )
        return Draft(Tree(grown.topology, tokens, self._drafter.reading.draws), probs)

    def _speculated(self, generator: Generator, tokens: Tensor, features: Tensor) -> tuple[Tensor, ...]:
        """The laws (R, V) of all forwarded rows, then the parts of a tree for `connect` or `filled`.

        tokens: (C,) int64, committed and not cached yet; features: (C, H), the true ones before them.
        """
        predicted = self._session.extend(tokens, features)[-1:]
        growth = Growth(self._session, self._head, predicted, self._warp)
        tree = self._drafter.tree
        if isinstance(tree, DynamicTree):
            parts: tuple[Tensor, ...] = tree.grow(growth)
        else:
            parts = (fill(tree, growth, self._drafter.reading, generator),)
        return torch.cat(growth.laws), *parts

    def commit(self, verdict: Verdict, features: Tensor) -> None:
        """Every emitted token has the true feature of the node before it."""
        self._tokens = verdict.tokens
        self._features = features.index_select(0, upload([0, *verdict.path], self._session.device))


def fill(topology: Topology, growth: Growth, reading: Reading, generator: Generator) -> Tensor:
    """Choose the children of every node of a fixed topology, level by level; leaves are not forwarded.

    Returns the tokens (N-1,) of the nodes below the root.
    """
    device = growth.logits.device
    tokens = torch.zeros(topology.num_nodes, dtype=torch.int64, device=device)
    for depth, level in enumerate(inner_levels(topology, device)):
        if depth:
            growth.forward(tokens.index_select(0, level.nodes), level.parents)
        if reading is Reading.SAMPLED:
            chosen = reading.draws.draw(growth.laws[-1], level.most_children, generator)
        else:  # by the logits themselves: at a low temperature many laws' entries are 0
            chosen = growth.logits.topk(level.most_children, dim=-1).indices
        level.put(tokens, chosen)
    return tokens[1:]


def filled(topology: Topology, tokens: Tensor) -> Grown:
    """The tree of `fill`: its nodes with children were forwarded in their order."""
    nodes = torch.cat([level.nodes for level in inner_levels(topology, tokens.device)])
    return Grown(topology, tokens, nodes, torch.arange(len(nodes), device=tokens.device))
