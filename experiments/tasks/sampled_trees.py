"""Drafted trees and target rollouts after a prefix, with both models' laws at their nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.audit.ceiling import tree_log_ratios
from resispec.core import Draft, Tree
from resispec.cuda_graphs import upload
from resispec.decode import Decoder
from resispec.drafters import DraftModel
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models import Model, Pair, Warp
from resispec.trees import Topology, chain
from resispec.verifiers.base import Verifier

INFINITE = 1e6
"""Stands for infinity in rows, which JSON does not have; real log ratios are far smaller."""


def filled_by_draft_model(decoder: Decoder) -> DraftModel:
    """A decoder's drafter. Raises InvalidInput unless it is the draft model on a fixed topology."""
    if not isinstance(decoder.drafter, DraftModel):
        raise InvalidInput(
            "trees are measured where the draft model fills them; allowed: decoder=specinfer, sequoia, top_k"
        )
    return decoder.drafter


@dataclass(frozen=True)
class Root:
    """The end of a prefix, where trees begin: its last token is their root.

    warp: from logits to laws, of both models.
    """

    pair: Pair
    prefix: list[int]
    warp: Warp

    def draft(self, topology: Topology, generator: Generator, draws: Draws = Draws.IID) -> Draft:
        """Let the draft model fill a topology, as decoding does."""
        return self._filled(self.pair, topology, generator, draws)

    def laws(self, model: Model, tree: Tree) -> Tensor:
        """A model's laws (N, V) of the next token at nodes with children; the uniform law at leaves."""
        device, topology = model.device, tree.topology
        nodes = torch.tensor([node for node, children in enumerate(topology.children) if children])
        session = model.session(len(self.prefix), drafted=len(nodes))
        if self.prefix[:-1]:
            session.extend(upload(self.prefix[:-1], device))
        visible = topology.ancestors[nodes][:, nodes].to(device)
        depths = topology.depths[nodes].to(device)
        features = session.forward(tree.tokens[nodes.to(device)], depths, visible)
        inner = self.warp.law(model.head(features))
        laws = inner.new_full((topology.num_nodes, inner.shape[1]), 1 / inner.shape[1])
        return laws.index_copy_(0, nodes.to(device), inner)

    def target_path_ratios(self, topology: Topology, generator: Generator) -> Tensor:
        """log prod p / q along paths that the target draws, (chains, D-1) float64.

        topology: made by `parallel_chains`.
        """
        draft = self.pair.draft_model()
        drawn = self._filled(Pair(draft, self.pair.target, self.pair.tokenizer), topology, generator)
        draft_probs = self.laws(draft, drawn.tree)
        paths = []
        for index in range(len(topology.children[0])):
            nodes = [0, *(level.start + index for level in topology.levels[1:])]
            path = Tree(chain(len(nodes) - 1), drawn.tree.tokens[nodes], Draws.IID)
            paths.append(tree_log_ratios(path, drawn.probs[nodes], draft_probs[nodes]))
        return torch.stack(paths)

    def _filled(
        self, pair: Pair, topology: Topology, generator: Generator, draws: Draws = Draws.IID
    ) -> Draft:
        session = DraftModel(topology, draws).session(pair, self.warp, len(self.prefix))
        session.prefill(self.prefix, None)
        return session.draft(self.prefix[-1], generator)


def part(draft: Draft, target_probs: Tensor, topology: Topology) -> tuple[Draft, Tensor]:
    """The part of a drafted tree that has this topology, first siblings first, and its target laws.

    Its law is that of what the draft model would have drafted for this topology, unless draws are greedy,
    where the last sibling is special. target_probs: (N, V), of the whole tree. Raises IndexError when the
    topology does not fit.
    """
    nodes = [0] * topology.num_nodes
    for node, children in enumerate(topology.children):
        for rank, child in enumerate(children):
            nodes[child] = draft.tree.topology.children[nodes[node]][rank]
    tree = Tree(topology, draft.tree.tokens[nodes], draft.tree.draws)
    return Draft(tree, draft.probs[nodes]), target_probs[nodes]


def expected_emitted(verifier: Verifier, draft: Draft, target_probs: Tensor) -> float:
    """Expected tokens of one step given the drafted tree.

    It is the sum over nodes of Pr(the walk stops there) * (depth + 1).
    target_probs: (N, V), the target's laws at the nodes.
    """
    stop = verifier.outcomes(draft.tree, target_probs, draft.probs).stop.double()
    return float(stop @ (draft.tree.topology.depths.to(stop.device) + 1).double())


def finite(log_ratios: Tensor) -> list[float]:
    """A row of path ratios for JSON, infinities as plus or minus `INFINITE`."""
    return [float(value) for value in log_ratios.clamp(-INFINITE, INFINITE)]
