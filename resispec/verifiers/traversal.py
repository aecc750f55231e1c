"""Verification from the leaves up: Traversal Verification (arXiv 2505.12398), with the weights of any sibling rule.

A path that no rule would accept token by token may still be worth accepting as a whole, so nothing is decided at a node before
its whole subtree was examined. With the standard rule's weights this is the published algorithm, and on a chain it is Block
Verification (2403.10444).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import draw_one, normalise
from resispec.trees import Topology
from resispec.verifiers.base import Law, Outcomes, SiblingRule, is_first
from resispec.verifiers.lookahead import lookahead


@dataclass(frozen=True)
class Traversal:
    """Accepts the subtree of node n with probability a_n, on average over what is drafted below it.

    a is 1 at the root. The law of `rule` for the target a_n p_n gives the weights w of the children of n, which are examined in
    draw order with a = w_k / (1 - w_1 - ... - w_{k-1}). When all of them fail, the walk stops at n, or it rejects n with the mass
    that the residual lacks. A leaf is accepted with probability a.
    """

    rule: SiblingRule

    def verify(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator) -> Verdict:
        """Draw an outcome, depth first: a law, and one host synchronisation, for every node that is reached and has children.

        With a rule that is bounded, see `lookahead`, subtrees that cannot be accepted are passed over.
        Raises FloatingPointError for a law that is NaN or empty.
        """
        parents, children = tree.topology.parents, tree.topology.children
        # A node is decided once at most, so one coin a node is enough.
        drawn = torch.rand(len(parents), generator=generator, device=target_probs.device, dtype=torch.float64)
        coins, can_accept = lookahead(self.rule, tree, target_probs, draft_probs, drawn)
        # Decisions to come, the next one last: stop here, with this final law, with this chance; no law: examine the subtree.
        pending: list[tuple[int, float, Tensor | None]] = [(0, 1.0, None if children[0] else target_probs[0])]
        while True:
            node, chance, final = pending.pop()
            if final is not None:
                if coins[node] < chance:
                    break
                continue
            if not can_accept(node, chance):
                continue
            siblings = tree.tokens[children[node][0] : children[node][-1] + 1]
            law = self.rule.law(chance * target_probs[node], draft_probs[node], siblings, tree.draws)
            masses, stay, residual = _decisions(law, siblings)
            *found, stays = torch.cat((masses, stay)).tolist()
            if not all(0 <= value <= 1 for value in (*found, stays)):
                raise FloatingPointError(
                    f"cannot decide at node {node} with chances {found} and {stays}; allowed: 0 to 1"
                )
            pending.append((node, stays if node else 1.0, residual))  # the root is never rejected
            for child, mass in zip(reversed(children[node]), reversed(found), strict=True):
                if mass > 0:
                    pending.append((child, mass, None if children[child] else target_probs[child]))
        token, path = draw_one(final, generator), []
        while node:
            path.append(node)
            node = parents[node]
        path.reverse()
        return Verdict(tuple(path), (*tree.tokens[path].tolist(), token))

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from, in the precision of `target_probs`; every node is visited, level by level."""
        families = _families_by_level(tree.topology, target_probs.device)
        # Probability of accepting a node itself, once its children have failed; a leaf has none, so its own is a.
        stay = torch.ones_like(target_probs[:, 0], dtype=torch.float64)
        final = target_probs.clone()
        for parents, children in families:
            siblings = tree.tokens[children]
            target = stay[parents, None].to(final.dtype) * target_probs[parents]
            law = self.rule.law(target, draft_probs[parents], siblings, tree.draws)
            stay[children], stays, residual = _decisions(law, siblings)
            stay[parents] = torch.where(parents > 0, stays[:, 0], 1.0)
            final[parents] = normalise(residual, target_probs[parents])
        childless = torch.ones_like(stay)  # probability that all children fail, given that they are examined
        for parents, children in reversed(families):
            childless[parents] = ((1 - stay) * childless)[children].prod(-1)
        reach = torch.ones_like(stay)
        for parents, children in families:
            fail = ((1 - stay) * childless)[children]
            before = torch.cat((torch.ones_like(fail[:, :1]), fail[:, :-1]), -1).cumprod(-1)
            reach[children] = reach[parents, None] * before
        return Outcomes((reach * childless * stay).to(final.dtype), final)


def _decisions(law: Law, siblings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a law says about a node and its children, in the order of examination.

    Returns a (..., B) of every child; the probability (..., 1) of stopping at the node, not rejecting it, once all of them have
    failed; and the unnormalised law (..., V) of the final token there. The first two are float64.
    """
    # What the residual gives to a drafted token is accepted at that child, which changes no law while its subtree is not yet
    # examined. Afterwards it would: a subtree that failed is no fresh draw from the draft, so the walk cannot go on there.
    rest = 1 - law.select.sum(-1, keepdim=True, dtype=torch.float64)
    drafted = torch.where(is_first(siblings), law.residual.gather(-1, siblings), 0.0).double()
    weights = law.select + rest.clamp_min(0) * drafted
    tiny = torch.finfo(torch.float64).tiny  # in place of 0, so that 0 / 0 is 0 while NaN stays NaN
    masses = (weights / (1 - (weights.cumsum(-1) - weights)).clamp_min(tiny)).clamp(0, 1)
    undrafted = law.residual.scatter(-1, siblings, 0.0)
    kept = undrafted.sum(-1, keepdim=True).double()
    lacking = (1 - kept - drafted.sum(-1, keepdim=True)).clamp_min(0)
    # Where rounding alone leads here, nothing may be left but drafted tokens.
    return masses, kept / (kept + lacking).clamp_min(tiny), torch.where(kept > 0, undrafted, law.residual)


def _families_by_level(topology: Topology, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """The topology's families, split so that parents of one pair share a level, from the root down."""
    found = []
    for level in topology.levels:
        for parents, children in topology.families:
            here = (parents >= level.start) & (parents < level.stop)
            if bool(here.any()):
                found.append((parents[here].to(device), children[here].to(device)))
    return found
