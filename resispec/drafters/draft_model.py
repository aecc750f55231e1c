"""An independent draft model fills a fixed topology level by level.

Plain speculative decoding, SpecInfer and Sequoia draft this way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.core import Draft, Draws, Tree, Verdict
from resispec.cuda_graphs import as_unit, upload
from resispec.drafters.base import DraftSession, NoDraft
from resispec.drafters.levels import inner_levels
from resispec.errors import InvalidInput
from resispec.models import Model, Pair, Warp, keeping
from resispec.trees import Topology


@dataclass(frozen=True)
class DraftModel:
    """Draws the children of every node from the draft model's law at that node.

    topology: fixed beforehand. draws: how siblings are drawn, by name or as an object.
    Raises InvalidInput for draws that cannot be cut, such as greedy ones, where the nodes of a level differ
    in their number of children.
    """

    topology: Topology
    draws: Draws = Draws.IID

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", Draws(self.draws))  # a config gives the name
        if not isinstance(self.topology, Topology):
            raise InvalidInput(
                f"a draft model fills a tree of fixed shape; found {self.topology!r} (EAGLE's, if dynamic)"
            )
        # A level is drawn at once and cut to each node's number of children.
        children = self.topology.children
        counts = [{len(children[node]) for node in level} - {0} for level in self.topology.levels]
        if not self.draws.can_be_cut and max(map(len, counts)) > 1:
            raise InvalidInput(
                f"{self.draws} draws: nodes of one level differ in their number of children; "
                "allowed: equal numbers, or none"
            )

    def session(self, pair: Pair, warp: Warp, capacity: int) -> DraftSession:
        """See `Drafter.session`. Raises InvalidInput when the pair has no draft model."""
        if self.topology.num_nodes == 1:
            return NoDraft().session(pair, warp, capacity)
        return _DraftModelSession(self, pair.draft_model(), warp, capacity)


class _DraftModelSession:
    """The draft model's cache, and the committed tokens that are not in it yet."""

    def __init__(self, drafter: DraftModel, model: Model, warp: Warp, capacity: int) -> None:
        self._drafter, self._model, self._warp = drafter, model, warp
        self._levels = inner_levels(drafter.topology, model.device)
        forwarded = torch.cat([level.nodes for level in self._levels]).tolist()[1:]
        self._rows = {node: row for row, node in enumerate(forwarded)}
        self._session = model.session(capacity, drafted=len(self._rows))
        self._fill = as_unit(self._filled, model.device)
        self._keep = keeping(self._session, model.device)
        self._pending: list[int] = []

    def prefill(self, prompt: list[int], features: Tensor | None) -> None:
        """Cache the prompt up to its last token, which is the first root."""
        self._session.clear()
        self._pending = []
        if prompt[:-1]:
            self._session.extend(upload(prompt[:-1], self._model.device))

    def draft(self, root: int, generator: Generator) -> Draft:
        """Sample level by level; only nodes with children are forwarded, so leaves never are."""
        committed = upload([*self._pending, root], self._model.device)
        tokens, probs, self._sample = self._fill(generator, committed)
        return Draft(Tree(self._drafter.topology, tokens, self._drafter.draws), probs)

    def _filled(self, generator: Generator, committed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tree's tokens (N,), its laws (N, V), and an entry of every law (K,).

        committed: (C,) int64, the tokens that are not cached yet; the root is the last.
        """
        topology = self._drafter.topology
        features = self._session.extend(committed)[-1:]
        tokens = committed[-1:].expand(topology.num_nodes).clone()
        laws: list[Tensor] = []
        for level in self._levels:
            if laws:
                known = tokens.index_select(0, level.nodes)
                depths = torch.full_like(known, len(laws) - 1)
                features = self._session.forward(known, depths, level.visible)
            laws.append(self._warp.law(self._model.head(features)))
            level.put(tokens, self._drafter.draws.draw(laws[-1], level.most_children, generator))
        probs = laws[0].new_empty(topology.num_nodes, self._model.vocab_size)
        for level, law in zip(self._levels, laws, strict=True):
            probs.index_copy_(0, level.nodes, law)
        return tokens, probs, torch.cat([law[:, 0] for law in laws])

    def commit(self, verdict: Verdict, features: Tensor) -> None:
        """Keep the rows of the accepted path; an accepted leaf has none and is forwarded later.

        Raises FloatingPointError when a law of the last tree was NaN; checked here because the device has
        been waited for.
        """
        if bool(self._sample.isnan().any()):  # softmax spreads a NaN over the whole law
            raise FloatingPointError("the draft model's law is nan; masses are positive and finite")
        rows = [self._rows[node] for node in verdict.path if node in self._rows]
        if rows:
            self._keep(rows)
        self._pending = list(verdict.tokens[len(rows) : len(verdict.path)])
