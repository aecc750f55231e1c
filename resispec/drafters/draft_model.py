"""An independent draft model fills a fixed topology level by level: plain speculative decoding, SpecInfer, Sequoia."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Generator, Tensor

from resispec.core import Draft, Draws, Tree, Verdict
from resispec.distributions import draw_siblings, probabilities
from resispec.drafters.base import DraftSession
from resispec.drafters.no_draft import NoDraft
from resispec.errors import InvalidInput
from resispec.models import Model, Pair, behind_anything, extend
from resispec.topology import Topology


@dataclass(frozen=True)
class DraftModel:
    """Draws the children of every node from the draft model's law at that node.

    topology: the shape, fixed beforehand. draws: how siblings are drawn.
    Raises InvalidInput for greedy draws where a level's nodes differ in their number of children.
    """

    topology: Topology
    draws: Draws = Draws.IID

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", Draws(self.draws))  # a config gives the plain word
        # A level is drawn at once and cut to each node's number of children, but of greedy siblings the last one is special.
        counts = [{len(self.topology.children[node]) for node in level} - {0} for level in self.topology.levels]
        if self.draws is Draws.GREEDY and any(len(found) > 1 for found in counts):
            raise InvalidInput(
                "greedy draws: nodes of one level differ in their number of children; allowed: equal numbers, or none"
            )

    def start(self, pair: Pair, prompt: list[int], temperature: float, capacity: int) -> DraftSession:
        """See `Drafter.start`. Raises InvalidInput when the pair has no draft model."""
        if self.topology.num_nodes == 1:
            return NoDraft().start(pair, prompt, temperature, capacity)
        if pair.draft is None:
            raise InvalidInput("this decoder drafts with a draft model and the pair has none; give pair.draft")
        session = DraftModelSession(self, pair.draft, temperature, capacity)
        session.prefill(prompt)
        return session


@dataclass(frozen=True)
class _Level:
    """The nodes of one level that have children, and how those are filled.

    nodes: (K,) ids. visible: (K, capacity + R) bool, see `behind_anything`: what each sees of the R = `num_rows` drafted rows
    cached so far, its own level included.
    children: the next level's ids; `picks` (C,) are their places among the K x most_children draws.
    """

    depth: int
    num_rows: int
    nodes: Tensor
    visible: Tensor
    children: slice
    picks: Tensor
    most_children: int


@lru_cache(maxsize=8)
def _plan(topology: Topology, device: torch.device, capacity: int) -> tuple[tuple[_Level, ...], dict[int, int]]:
    """The levels that are drafted from, and every cached node's row after the committed ones."""
    levels, rows = [], dict[int, int]()
    for depth, ids in enumerate(topology.levels):
        nodes = [node for node in ids if topology.children[node]]
        if depth:
            rows.update({node: len(rows) + offset for offset, node in enumerate(nodes)})
        if nodes:
            most = max(len(topology.children[node]) for node in nodes)
            picks = [row * most + rank for row, node in enumerate(nodes) for rank in range(len(topology.children[node]))]
            children = slice(ids.stop, ids.stop + len(picks))
            visible = behind_anything(topology.ancestors[nodes][:, list(rows)].to(device), capacity)
            places = torch.tensor(nodes, device=device), torch.tensor(picks, device=device)
            levels.append(_Level(depth, len(rows), places[0], visible, children, places[1], most))
    return tuple(levels), rows


class DraftModelSession:
    """The draft model's cache, and the committed tokens that are not in it yet."""

    def __init__(self, drafter: DraftModel, model: Model, temperature: float, capacity: int) -> None:
        self._drafter, self._model, self._temperature = drafter, model, temperature
        self._levels, self._rows = _plan(drafter.topology, model.device, capacity)
        self._session = model.session(capacity)
        self._pending: list[int] = []

    def prefill(self, prompt: list[int]) -> None:
        """Cache the prompt up to its last token, which is the first root."""
        if prompt[:-1]:
            extend(self._session, prompt[:-1], self._model.device)

    def draft(self, root: int, generator: Generator) -> Draft:
        """Sample level by level; only nodes with children are forwarded, so leaves never are."""
        topology, device = self._drafter.topology, self._model.device
        features = extend(self._session, [*self._pending, root], device)[-1:]
        past = self._session.length
        tokens = torch.full((topology.num_nodes,), root, device=device)
        laws = []
        for level in self._levels:
            if level.depth:
                positions = torch.full_like(level.nodes, past - 1 + level.depth)
                visible = level.visible[:, -past - level.num_rows :]
                features = self._session.forward(tokens.index_select(0, level.nodes), positions, visible)
            laws.append(probabilities(self._model.head(features), self._temperature))
            drawn = draw_siblings(laws[-1], level.most_children, self._drafter.draws, generator)
            tokens[level.children] = drawn.flatten().index_select(0, level.picks)
        self._past = past
        probs = laws[0].new_empty(topology.num_nodes, self._model.vocab_size)
        for level, law in zip(self._levels, laws, strict=True):
            probs.index_copy_(0, level.nodes, law)
        return Draft(Tree(topology, tokens, self._drafter.draws), probs)

    def commit(self, verdict: Verdict, features: Tensor) -> None:
        """Keep the rows of the accepted path; an accepted leaf has none and is forwarded before the next root."""
        cached = [self._rows[node] for node in verdict.path if node in self._rows]
        self._session.keep(self._past, cached)
        self._pending = [token for node, token in zip(verdict.path, verdict.tokens, strict=False) if node not in self._rows]
