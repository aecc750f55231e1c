"""EAGLE as a drafter: candidates from features that the target has computed anyway.

arXiv 2401.15077, 2406.16858, 2503.01840. Between steps the drafter's cache holds only rows of true
features; the rows that a step speculates are forgotten at the end of the step.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.core import Draft, DrawsKind, Tree, Verdict
from resispec.cuda_graphs import own_unit, upload
from resispec.drafters.base import DraftSession, NoDraft, root_alone
from resispec.drafters.eagle_trees import DynamicTree, FixedTree, Growth, Reading
from resispec.drafters.recycled import NOTHING, RecycledLaws, check_share
from resispec.errors import InvalidInput
from resispec.models import Pair, Warp
from resispec.trees import Topology


@dataclass(frozen=True)
class Eagle:
    """Drafts with the pair's EAGLE model.

    tree: a fixed topology, or EAGLE-2's dynamic tree. reading: see `Reading`; with every reading
    the draft's `probs` are the drafter's softmax at the sampling temperature. recycled: the share
    of the target's earlier laws in the laws that candidates are drawn from, as in a `DraftModel`.
    Raises InvalidInput for sampled candidates in a dynamic tree, which keeps candidates by their
    scores, so that the kept ones would not have the drafter's law; and for recycled laws if nothing
    is drawn.
    """

    tree: Topology | DynamicTree
    reading: Reading = Reading.POINT_MASS
    recycled: float = 0.0

    def __post_init__(self) -> None:
        if self.reading not in list(Reading):
            raise InvalidInput(f"unknown reading {self.reading!r}; allowed: {', '.join(Reading)}")
        object.__setattr__(self, "reading", Reading(self.reading))  # a config gives the plain word
        if self.reading.is_sampled and isinstance(self.tree, DynamicTree):
            raise InvalidInput(
                "sampled candidates need a tree of fixed shape; found a dynamic one, which prunes "
                "by score"
            )
        check_share(self.recycled)
        if self.recycled and not self.reading.is_sampled:
            raise InvalidInput(
                f"recycled is {self.recycled} and nothing is drawn; allowed: 0, or reading=sampled "
                "or iid"
            )

    @property
    def shape(self) -> FixedTree | DynamicTree:
        """The object that grows the tree."""
        return FixedTree(self.tree, self.reading) if isinstance(self.tree, Topology) else self.tree

    @property
    def draws(self) -> DrawsKind:
        """See `Reading.draws`."""
        return self.reading.draws

    @property
    def topology(self) -> Topology:
        """A tree with as many nodes and levels as any that this drafter proposes."""
        return self.shape.largest

    def session(self, pair: Pair, warp: Warp, capacity: int) -> DraftSession:
        """See `Drafter.session`.

        Raises InvalidInput if the pair has no EAGLE model, or if a parent has more candidates than
        there are tokens to draft.
        """
        if self.topology.num_nodes == 1:
            return NoDraft().session(pair, warp, capacity)
        size, top_k = pair.eagle_model().num_draftable, self.shape.top_k
        if top_k > size:
            raise InvalidInput(
                f"{top_k} candidates of one parent; the vocabulary has {size} tokens"
            )
        return _EagleDrafts(self, pair, warp, capacity)


class _EagleDrafts:
    """The drafter's cache, and the committed tokens and true features that the cache lacks."""

    def __init__(self, drafter: Eagle, pair: Pair, warp: Warp, capacity: int) -> None:
        self._shape, self._draws = drafter.shape, drafter.draws
        self._head, self._warp = pair.eagle_head(), warp
        self._session = pair.eagle_model().session(capacity, self._shape.num_rows)
        self._speculate = own_unit(self._speculated, self._session.device)
        self._before, self._tokens = NOTHING, list[int]()
        self._features: Tensor | None = None
        self._recycled = RecycledLaws(drafter.recycled, pair.target, warp, drafter.topology)

    def prefill(self, prompt: list[int], features: Tensor | None) -> None:
        """Cache all known rows but the last one, whose token is the first root."""
        self._session.clear()
        self._before, self._tokens = (NOTHING, *prompt)[-2], prompt[-1:]
        self._features = None if features is None else features[-1:]
        if features is not None and len(prompt) > 2:
            self._session.extend(upload(prompt[1:-1], self._session.device), features[:-1])
        self._recycled.begin(prompt, features)

    def draft(self, root: int, generator: Generator) -> Draft:
        """Catch up with committed tokens, `root` the last, then speculate with one forward a level.

        A prompt of one token has no feature to draft from: its first tree is the root alone. Raises
        FloatingPointError when a law that decides about a dynamic tree is NaN.
        """
        if self._features is None:
            return root_alone(root, self._session.device)
        known = upload([self._before, *self._tokens], self._session.device)
        laws, *parts = self._speculate(generator, known, self._features)
        tree = self._shape.connect(*parts)
        tokens = torch.cat((known[-1:], tree.tokens))
        self._drafted = known[-2:-1], tokens
        probs = laws.new_empty(len(tokens), laws.shape[1])
        probs.index_copy_(0, tree.nodes, laws.index_select(0, tree.rows))
        return Draft(Tree(tree.topology, tokens, self._draws), probs)

    def _speculated(
        self, generator: Generator, known: Tensor, features: Tensor
    ) -> tuple[Tensor, ...]:
        """The laws (R, V) of all forwarded rows, then the parts of a tree for `connect`.

        known: (1 + C,) int64, the last cached token and the C committed tokens after it. features:
        (C, H), the true feature before each of these C tokens.
        """
        predicted = self._session.extend(known[1:], features)[-1:]
        growth = Growth(self._session, self._head, predicted, self._warp, known, self._recycled)
        parts = self._shape.grow(growth, generator)
        return torch.cat(growth.laws), *parts

    def commit(self, verdict: Verdict, features: Tensor, target_probs: Tensor) -> None:
        """Remember every emitted token with the true feature of the node before it."""
        if self._features is not None:
            self._recycled.learn_tree(*self._drafted, target_probs)
        self._before, self._tokens = (self._before, *self._tokens)[-1], list(verdict.tokens)
        self._features = features.index_select(0, upload([0, *verdict.path], self._session.device))
