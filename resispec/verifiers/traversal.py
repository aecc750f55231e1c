"""Verification from the leaves up: Traversal Verification (arXiv 2505.12398) by any rule's weights.

A path that no rule would accept token by token may still be worth accepting as a whole, so a node
is decided only after its whole subtree was examined. With the standard rule's weights this is the
published algorithm, and on a chain it is Block Verification (2403.10444).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import check_chances, draw_one, normalise, quotient, sum_tolerance
from resispec.errors import InvalidInput
from resispec.trees import families_by_level_on
from resispec.verifiers.base import (
    Law,
    Outcomes,
    SiblingRule,
    interface_of,
    is_first,
    law_of,
    naming,
    rule_name,
)
from resispec.verifiers.pruning import lookahead
from resispec.verifiers.registry import get_rule, register


@dataclass(frozen=True)
class Traversal:
    """Examines node n with a mass a_n: the mean chance, over what lies below, that n is accepted.

    The root has a = 1 and a leaf is accepted with probability a. At a node in between, the law of
    `rule` for the target a_n p_n gives every child k a weight w_k: the probability that k is
    selected, plus what the residual gives to its token. Children are examined in draw order, child
    k with the mass w_k / (1 - w_1 - ... - w_{k-1}). When all children fail, n is rejected with the
    probability that the residual lacks; otherwise the walk stops at n and the final token is drawn
    from the residual. Raises InvalidInput when `rule` is no sibling rule.
    """

    rule: SiblingRule

    def __post_init__(self) -> None:
        if interface_of(self.rule) is not SiblingRule:  # a YAML names the rule
            kind = type(self.rule).__name__
            raise InvalidInput(f"Traversal takes a sibling rule, which has a `law`; found {kind}")

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """Draw a verdict, depth first.

        Every node with children that is reached takes one law and one host synchronisation. With a
        rule that is bounded, see `lookahead`, subtrees that cannot be accepted are skipped.

        Raises InvalidInput when the rule returns tensors of wrong shapes, and FloatingPointError
        when it returns an invalid law: NaN, negative or too large masses. A residual is checked for
        negative masses only when it is drawn from.
        """
        children = tree.topology.children
        # A node is decided once at most, so one coin per node is enough.
        uniform = torch.rand(
            len(children), generator=generator, device=target_probs.device, dtype=torch.float64
        )
        coins, can_accept = lookahead(self.rule, tree, target_probs, draft_probs, uniform)
        # A stack, whose top is next. (node, chance, law): stop at the node with this chance, and
        # draw the final token from the law. (node, mass, None): examine the node's subtree with
        # this mass.
        stack: list[tuple[int, float, Tensor | None]] = [
            (0, 1.0, None if children[0] else target_probs[0])
        ]
        while True:
            node, chance, final = stack.pop()
            if final is not None:
                if coins[node] < chance:
                    break
                continue
            if not can_accept(node, chance):
                continue
            siblings = tree.tokens[children[node][0] : children[node][-1] + 1]
            law = law_of(
                self.rule, chance * target_probs[node], draft_probs[node], siblings, tree.draws
            )
            decision = _decide(law, siblings)
            masses, stays = self._numbers(law, decision, node)
            # the root is never rejected
            stack.append((node, stays if node else 1.0, decision.final))
            for child, mass in zip(reversed(children[node]), reversed(masses), strict=True):
                if mass > 0:
                    stack.append((child, mass, None if children[child] else target_probs[child]))
        with naming(rule_name(self.rule) if children[node] else "target", node):
            token = draw_one(final, generator)
        path = tree.topology.path_to(node)
        return Verdict(path, (*tree.tokens[list(path)].tolist(), token))

    def _numbers(self, law: Law, decision: _Decision, node: int) -> tuple[list[float], float]:
        """The masses of a node's children and the chance of stopping at it; checks the law, too."""
        count, tolerance = law.select.shape[-1], sum_tolerance(law.select)
        parts = decision.masses, law.select, decision.drafted, decision.undrafted, decision.stay
        *numbers, stay = torch.cat(parts).tolist()
        select, residual = numbers[count : 2 * count], numbers[2 * count :]
        with naming(rule_name(self.rule), node):
            check_chances(select, tolerance)
            check_chances(residual, tolerance)
            # The root's target is a whole law, so its residual is one unless a sibling is surely
            # selected.
            if node == 0 and sum(select) < 1 - tolerance and sum(residual) < 1 - tolerance:
                raise FloatingPointError(f"the residual sums to {sum(residual):.9g}; allowed: 1")
        return numbers[:count], stay

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from, in the target's precision; visits every node."""
        families = families_by_level_on(tree.topology, target_probs.device)
        # Probability of accepting a node itself once all its children have failed; for a leaf, its
        # mass a.
        stay = torch.ones_like(target_probs[:, 0], dtype=torch.float64)
        final = target_probs.clone()
        for parents, children in families:
            siblings = tree.tokens[children]
            target = stay[parents, None].to(final.dtype) * target_probs[parents]
            law = law_of(self.rule, target, draft_probs[parents], siblings, tree.draws)
            decision = _decide(law, siblings)
            stay[children] = decision.masses
            stay[parents] = torch.where(parents > 0, decision.stay[:, 0], 1.0)
            final[parents] = normalise(decision.final, target_probs[parents])
        # probability that all children fail, given that they are examined
        childless = torch.ones_like(stay)
        for parents, children in reversed(families):
            childless[parents] = ((1 - stay) * childless)[children].prod(-1)
        reach = torch.ones_like(stay)
        for parents, children in families:
            fail = ((1 - stay) * childless)[children]
            before = torch.cat((torch.ones_like(fail[:, :1]), fail[:, :-1]), -1).cumprod(-1)
            reach[children] = reach[parents, None] * before
        return Outcomes((reach * childless * stay).to(final.dtype), final)


@register("traversal")
def traversal(weights: str = "standard", **options: Any) -> Traversal:
    """Traversal Verification with the weights of a rule, by its name and options."""
    return Traversal(get_rule(weights, **options))


@register("traversal_optimal")
def traversal_optimal(**options: Any) -> Traversal:
    """Traversal Verification with the weights of the optimal rule."""
    return traversal("optimal", **options)


@register("univer")
def univer() -> Traversal:
    """UniVer (arXiv 2605.04543) for greedy draws: Traversal Verification
    with the weights of their rule.

    Its weights are those of an implementation that cites it. With w the node's mass, s the law of
    the drawn sibling u and Z = 1 - w + sum (w p - s)+, u has the weight
    f(u) = min(1, w p(u) / s(u)), a chosen sibling d has w p(d) (1 - f(u)) / Z, and the node is
    rejected with probability (1 - f(u)) (1 - w) / Z. `_decide` finds the same weights for `Greedy`.
    The paper's own text was not at hand.
    """
    return traversal("greedy")


@dataclass(frozen=True)
class _Decision:
    """Decisions about a node and its children, in order of examination; float64 but for `final`.

    masses: (..., B), the masses with which the children are examined. stay: (..., 1) probability of
    stopping at the node, not rejecting it, once all children have failed. final: (..., V), the
    unnormalised law of the token that is emitted then. drafted, undrafted: (..., B) and (..., 1),
    what the residual gives to each child and to all other tokens.
    """

    masses: Tensor
    stay: Tensor
    final: Tensor
    drafted: Tensor
    undrafted: Tensor


def _decide(law: Law, siblings: Tensor) -> _Decision:
    """Turn the law at a node, given siblings (..., B), into decisions one after another."""
    # The residual's mass on a drafted token goes to that child before its subtree is examined. That
    # changes no emitted law. Once the subtree was examined and has failed, its tokens are no longer
    # fresh draws from the draft, so a residual token could not go on there.
    rest = 1 - law.select.sum(-1, keepdim=True, dtype=torch.float64)
    drafted = torch.where(is_first(siblings), law.residual.gather(-1, siblings), 0.0).double()
    weights = law.select + rest.clamp_min(0) * drafted
    masses = quotient(weights, 1 - (weights.cumsum(-1) - weights)).clamp(0, 1)
    undrafted = law.residual.scatter(-1, siblings, 0.0)
    total = undrafted.sum(-1, keepdim=True).double()
    lacking = (1 - total - drafted.sum(-1, keepdim=True)).clamp_min(0)
    # A residual may hold nothing but drafted tokens. Then only rounding leads here, and it is used
    # unchanged.
    final = torch.where(total > 0, undrafted, law.residual)
    return _Decision(masses, quotient(total, total + lacking), final, drafted, total)
