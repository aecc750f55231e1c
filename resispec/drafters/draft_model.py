"""A pair's own draft fills a fixed topology level by level.

Plain speculative decoding, SpecInfer and Sequoia draft this way.
"""

from dataclasses import dataclass, replace
from math import isnan

import torch
from torch import Generator, Tensor

from resispec.core import Draft, Draws, DrawsKind, Tree, Verdict
from resispec.cuda_graphs import own_unit, upload
from resispec.drafters.base import DraftSession, NoDraft
from resispec.drafters.eagle import Eagle
from resispec.drafters.eagle_trees import Reading
from resispec.drafters.levels import inner_levels, inner_nodes
from resispec.drafters.recycled import NOTHING, RecycledLaws, check_share
from resispec.errors import InvalidInput
from resispec.models import EagleModel, Pair, Warp, keeping
from resispec.trees import Topology

READINGS = {reading.draws: reading for reading in Reading if reading is not Reading.SOFTMAX}
"""The reading for each kind of draws that an EAGLE drafter has."""


@dataclass(frozen=True)
class DraftModel:
    """Draws every node's children from the law at that node of the pair's draft, of either kind.

    topology: the fixed shape of the tree. draws: how siblings are drawn, by name or as an object.
    sharpness: divides the sampling temperature for the draft's laws. recycled: the share of the
    target's earlier laws in the laws that siblings are drawn from, see `RecycledLaws`; 0 is off.
    Verification is exact for any law of the draft. At temperature 0, the draft's laws and the laws
    recycled from the prompt have temperature 1. Raises InvalidInput for numbers out of range, for
    more siblings than the draws have, and for draws that cannot be cut, such as greedy ones, if the
    nodes of a level differ in their number of children.
    """

    topology: Topology
    draws: DrawsKind = Draws.IID
    sharpness: float = 1.0
    recycled: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", Draws(self.draws))  # a config gives the name
        if not isinstance(self.topology, Topology):
            raise InvalidInput(
                f"a draft model fills a tree of fixed shape; found {self.topology!r} (EAGLE's, if "
                "dynamic)"
            )
        if not 0 < self.sharpness < float("inf"):
            raise InvalidInput(
                f"sharpness is {self.sharpness}; allowed: above 0, and 1 to change nothing"
            )
        check_share(self.recycled)
        children = self.topology.children
        self.draws.check_siblings(max(map(len, children)))
        # A level is drawn at once and cut to each node's number of children.
        counts = [{len(children[node]) for node in level} - {0} for level in self.topology.levels]
        if not self.draws.can_be_cut and max(map(len, counts)) > 1:
            raise InvalidInput(
                f"{self.draws} draws: nodes of one level differ in their number of children; "
                "allowed: equal numbers, or none, unless their class says `can_be_cut = True`"
            )

    def as_eagle(self) -> Eagle:
        """The drafter for a pair with an EAGLE model.

        Raises InvalidInput for what such a model lacks.
        """
        if self.draws not in READINGS or self.sharpness != 1:
            kind = type(self.draws).__name__
            raise InvalidInput(
                f"an EAGLE drafter has no draws {self.draws} ({kind}) of sharpness "
                f"{self.sharpness}; allowed: {', '.join(READINGS)}, of sharpness 1"
            )
        return Eagle(self.topology, READINGS[self.draws], self.recycled)

    def session(self, pair: Pair, warp: Warp, capacity: int) -> DraftSession:
        """See `Drafter.session`.

        Raises InvalidInput when the pair has no draft, for more distinct siblings than there are
        tokens, and as `as_eagle`.
        """
        if self.topology.num_nodes == 1:
            return NoDraft().session(pair, warp, capacity)
        if isinstance(pair.draft, EagleModel):
            return self.as_eagle().session(pair, warp, capacity)
        size, width = pair.draft_model().vocab_size, max(map(len, self.topology.children))
        if self.draws.are_distinct and width > size:
            raise InvalidInput(
                f"{width} distinct siblings of one parent; the vocabulary has {size} tokens"
            )
        return _DraftModelSession(self, pair, warp, capacity)


class _DraftModelSession:
    """The draft model's cache, the committed tokens that it lacks, and the target's laws so far."""

    def __init__(self, drafter: DraftModel, pair: Pair, warp: Warp, capacity: int) -> None:
        self._drafter, self._model = drafter, pair.draft_model()
        device = self._model.device
        self._warp = replace(warp, temperature=warp.temperature / drafter.sharpness)
        self._levels = inner_levels(drafter.topology, device)
        self._inner = inner_nodes(drafter.topology, device)
        self._rows = {node: row for row, node in enumerate(self._inner.tolist()[1:])}
        self._session = self._model.session(capacity, drafted=len(self._rows))
        self._fill = own_unit(self._filled, device)
        self._keep = keeping(self._session, device)
        self._cached, self._pending = NOTHING, list[int]()
        self._recycled = RecycledLaws(drafter.recycled, pair.target, warp, drafter.topology)

    def prefill(self, prompt: list[int], features: Tensor | None) -> None:
        """Cache the prompt up to its last token, which is the first root."""
        self._session.clear()
        self._cached, self._pending = (NOTHING, *prompt[:-1])[-1], []
        if prompt[:-1]:
            self._session.extend(upload(prompt[:-1], self._model.device))
        self._recycled.begin(prompt, features)

    def draft(self, root: int, generator: Generator) -> Draft:
        """Sample level by level; only nodes with children are forwarded, so leaves never are."""
        self._known = upload([self._cached, *self._pending, root], self._model.device)
        self._tokens, probs, self._sample = self._fill(generator, self._known)
        self._cached = root
        return Draft(Tree(self._drafter.topology, self._tokens, self._drafter.draws), probs)

    def _filled(self, generator: Generator, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tree's tokens (N,), laws (N, V), and one entry of each law (K,), which shows a NaN.

        known: (1 + C,) int64, the last cached token and the C committed tokens after it; the root
        is last.
        """
        features = self._session.extend(known[1:])[-1:]
        before, here, laws, tokens = known[-2:-1], known[-1:], list[Tensor](), [known[-1:]]
        for level in self._levels:
            if laws:
                before = here.index_select(0, level.parents)
                here = tokens[-1].index_select(0, level.places)
                features = self._session.forward(here, level.depths, level.visible)
            laws.append(
                self._recycled.mixed(before, here, self._warp.law(self._model.head(features)))
            )
            tokens.append(
                level.children(self._drafter.draws.draw(laws[-1], level.most_children, generator))
            )
        probs = laws[0].new_empty(self._drafter.topology.num_nodes, self._model.vocab_size)
        for level, law in zip(self._levels, laws, strict=True):
            probs[level.rows] = law
        return torch.cat(tokens), probs, probs[:, 0].index_select(0, self._inner)

    def commit(self, verdict: Verdict, features: Tensor, target_probs: Tensor) -> None:
        """Keep the rows of the accepted path; an accepted leaf has no row and is forwarded later.

        Raises FloatingPointError when a law of the last tree was NaN; the check is here because the
        step has waited for the device by now.
        """
        if isnan(self._sample.sum().item()):  # softmax spreads a NaN over the whole law
            raise FloatingPointError("the draft model's law is nan; masses are positive and finite")
        rows = [self._rows[node] for node in verdict.path if node in self._rows]
        if rows:
            self._keep(rows)
        self._pending = list(verdict.tokens[len(rows) : len(verdict.path)])
        self._cached = (self._cached, *verdict.tokens[: len(rows)])[-1]
        self._recycled.learn_tree(self._known[-2:-1], self._tokens, target_probs)
