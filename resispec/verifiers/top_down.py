"""Walk a tree from its root with a sibling rule: accept a child and go on there, or emit a residual token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import choose, draw_one, normalise, sum_tolerance
from resispec.errors import InvalidInput
from resispec.trees import families_on
from resispec.verifiers.base import (
    Outcomes,
    SiblingRule,
    Verifier,
    is_first,
    law_of,
    naming,
    require_rule,
    rule_name,
)


def as_verifier(rule_or_verifier: SiblingRule | Verifier) -> Verifier:
    """A verifier as it is, and a sibling rule wrapped in `TopDown`. Raises InvalidInput for anything else."""
    if hasattr(rule_or_verifier, "law"):
        return TopDown(cast(SiblingRule, rule_or_verifier))
    if not hasattr(rule_or_verifier, "verify"):
        kind = type(rule_or_verifier).__name__
        parts = "neither `law` (a sibling rule) nor `verify` and `outcomes` (a tree verifier)"
        raise InvalidInput(f"{kind} is no verifier: it has {parts}")
    return rule_or_verifier


@dataclass(frozen=True)
class TopDown:
    """A verifier that applies `rule` at every node it visits (SpecInfer, Algorithm 2).

    A residual token that equals a drafted sibling goes on at that sibling: the emitted law is the same, with
    more tokens. Raises InvalidInput when `rule` is no sibling rule.
    """

    rule: SiblingRule

    def __post_init__(self) -> None:
        require_rule("TopDown", self.rule)

    def verify(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator) -> Verdict:
        """Draw an outcome, visiting only the nodes of one path.

        Raises InvalidInput when the rule returns tensors of wrong shapes, and FloatingPointError when what it
        returns is no law: NaN, negative masses, a sum other than 1. The residual is checked when it is drawn
        from.
        """
        path: list[int] = []
        tokens: list[int] = []
        node = 0
        while children := tree.topology.children[node]:
            siblings = tree.tokens[children[0] : children[-1] + 1]
            law = law_of(self.rule, target_probs[node], draft_probs[node], siblings, tree.draws)
            drafted: list[int] = siblings.tolist()
            with naming(rule_name(self.rule), node):
                index = choose(law.select, generator)
                if index < len(children):
                    token = drafted[index]
                else:
                    token = draw_one(law.residual, generator, sum_tolerance(law.residual))
            tokens.append(token)
            if token not in drafted:
                return Verdict(tuple(path), tuple(tokens))
            node = children[index if index < len(children) else drafted.index(token)]
            path.append(node)
        with naming("target", node):
            return Verdict(tuple(path), (*tokens, draw_one(target_probs[node], generator)))

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from, in the precision of `target_probs`; every node is visited."""
        stop = torch.zeros_like(target_probs[:, 0])
        final = target_probs.clone()
        enter = torch.zeros_like(stop)  # probability of going on at a node, given that its parent was reached
        leave = torch.ones_like(stop)  # probability of stopping at a node, given that it was reached
        every_family, by_level = families_on(tree.topology, stop.device)
        for parents, children in every_family:
            siblings = tree.tokens[children]
            law = law_of(self.rule, target_probs[parents], draft_probs[parents], siblings, tree.draws)
            rest = (1 - law.select.sum(-1, keepdim=True)).clamp_min(0)
            residual = normalise(law.residual, law.residual)
            drafted = torch.where(is_first(siblings), residual.gather(-1, siblings), 0.0)
            enter[children] = law.select + rest * drafted
            leave[parents] = (rest * (1 - drafted.sum(-1, keepdim=True)).clamp_min(0))[:, 0]
            undrafted = residual.scatter(-1, siblings, 0.0)
            final[parents] = normalise(undrafted, residual)
        reach = torch.ones_like(stop)
        for parents, children in by_level:
            reach[children] = reach[parents, None] * enter[children]
        return Outcomes(reach * leave, final)
