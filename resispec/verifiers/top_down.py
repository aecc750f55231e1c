"""Walk a tree from its root with a sibling rule: accept a child and go on there, or stop and emit a residual token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import choose, draw_one, normalise
from resispec.verifiers.base import Outcomes, SiblingRule, is_first


@dataclass(frozen=True)
class TopDown:
    """A verifier that applies `rule` at every node it visits (SpecInfer, Algorithm 2).

    A residual token that equals a drafted sibling goes on at that sibling: the emitted law is the same, with more tokens.
    """

    rule: SiblingRule

    def verify(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator) -> Verdict:
        """Draw an outcome, visiting only the nodes of one path. Raises FloatingPointError for a law that is NaN or empty."""
        path: list[int] = []
        tokens: list[int] = []
        node = 0
        while children := tree.topology.children[node]:
            siblings = tree.tokens[children[0] : children[-1] + 1]
            law = self.rule.law(target_probs[node], draft_probs[node], siblings, tree.draws)
            index = choose(law.select, generator)
            drafted: list[int] = siblings.tolist()
            token = drafted[index] if index < len(children) else draw_one(law.residual, generator)
            tokens.append(token)
            if token not in drafted:
                return Verdict(tuple(path), tuple(tokens))
            node = children[index if index < len(children) else drafted.index(token)]
            path.append(node)
        return Verdict(tuple(path), (*tokens, draw_one(target_probs[node], generator)))

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from, in the precision of `target_probs`; every node is visited."""
        stop = torch.zeros_like(target_probs[:, 0])
        final = target_probs.clone()
        enter = torch.zeros_like(stop)  # probability of going on at a node, given that its parent was reached
        leave = torch.ones_like(stop)  # probability of stopping at a node, given that it was reached
        for family in tree.topology.families:
            parents, children = (nodes.to(stop.device) for nodes in family)
            siblings = tree.tokens[children]
            law = self.rule.law(target_probs[parents], draft_probs[parents], siblings, tree.draws)
            rest = (1 - law.select.sum(-1, keepdim=True)).clamp_min(0)
            residual = normalise(law.residual, law.residual)
            drafted = torch.where(is_first(siblings), residual.gather(-1, siblings), 0.0)
            enter[children] = law.select + rest * drafted
            leave[parents] = (rest * (1 - drafted.sum(-1, keepdim=True)).clamp_min(0))[:, 0]
            undrafted = residual.scatter(-1, siblings, 0.0)
            final[parents] = normalise(undrafted, residual)
        reach = torch.ones_like(stop)
        for level in tree.topology.levels[1:]:
            parents = torch.tensor(tree.topology.parents[level.start : level.stop], device=stop.device)
            nodes = slice(level.start, level.stop)
            reach[nodes] = reach[parents] * enter[nodes]
        return Outcomes(reach * leave, final)
