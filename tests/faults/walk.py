"""The walk down a tree in parts: what is drawn at a node, and at which child the walk goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import choose, draw_one, normalise
from resispec.verifiers import Law, Outcomes, SiblingRule, Standard, TopDown


@dataclass(frozen=True)
class Node:
    """A node with children. law: the rule's. target_probs, draft_probs: those of the tree, (N, V)."""

    tree: Tree
    place: int
    law: Law
    target_probs: Tensor
    draft_probs: Tensor

    @property
    def children(self) -> tuple[int, ...]:
        """The children, in draw order."""
        return self.tree.topology.children[self.place]

    @property
    def siblings(self) -> list[int]:
        """The children's tokens, in draw order."""
        return self.tree.tokens[list(self.children)].tolist()


@dataclass(frozen=True)
class Walk(TopDown):
    """The walk of `TopDown`; a fault overrides a part, and `outcomes` goes on saying what is right."""

    rule: SiblingRule = field(default_factory=Standard)

    def draw(self, node: Node, generator: Generator) -> tuple[int | None, int]:
        """The rank of the selected sibling, or None for a residual token, and the token."""
        index = choose(node.law.select, generator)
        if index < len(node.children):
            return index, node.siblings[index]
        return None, draw_one(node.law.residual, generator)

    def drawn(self, node: Node) -> Law:
        """The law that `draw` has."""
        return node.law

    def child(self, node: Node, index: int | None, token: int) -> int | None:
        """The child at which the walk goes on after what `draw` returned; None if it ends there."""
        if index is None:
            index = node.siblings.index(token) if token in node.siblings else None
        return None if index is None else node.children[index]

    def verify(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator) -> Verdict:
        """See `Verifier.verify`."""
        place: int | None = 0
        path, tokens = list[int](), list[int]()
        while place is not None and tree.topology.children[place]:
            node = self.node_at(tree, place, target_probs, draft_probs)
            index, token = self.draw(node, generator)
            tokens.append(token)
            place = self.child(node, index, token)
            path += [] if place is None else [place]
        if place is not None:
            tokens.append(draw_one(target_probs[place], generator))
        return Verdict(tuple(path), tuple(tokens))

    def true_outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` has; `outcomes` says what it should be."""
        final, reach = target_probs.clone(), torch.zeros_like(target_probs[:, 0])
        stop, reach[0] = torch.zeros_like(reach), 1.0
        for place, children in enumerate(tree.topology.children):
            stop[place] = reach[place]
            if not children:
                continue
            node = self.node_at(tree, place, target_probs, draft_probs)
            law = self.drawn(node)
            ends = torch.zeros_like(final[place])
            residual = (1 - law.select.sum()).clamp_min(0) * law.residual
            drawn = [(index, token, law.select[index]) for index, token in enumerate(node.siblings)]
            for index, token, mass in [*drawn, *((None, token, mass) for token, mass in enumerate(residual))]:
                child = self.child(node, index, token)
                if child is None:
                    ends[token] += mass
                else:
                    reach[child] += reach[place] * mass
            stop[place] *= ends.sum()
            final[place] = normalise(ends, final[place])
        return Outcomes(stop, final)

    def rule_at(self, tree: Tree, place: int) -> SiblingRule:  # noqa: ARG002 - faults differ by place
        """The rule that decides at a node."""
        return self.rule

    def node_at(self, tree: Tree, place: int, target_probs: Tensor, draft_probs: Tensor) -> Node:
        """A node with what the rule says there."""
        siblings = tree.tokens[list(tree.topology.children[place])]
        rule = self.rule_at(tree, place)
        law = rule.law(target_probs[place], draft_probs[place], siblings, tree.draws)
        return Node(tree, place, law, target_probs, draft_probs)
