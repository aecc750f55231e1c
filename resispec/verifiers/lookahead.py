"""Which subtrees need no law when a tree is verified from the leaves up, because nothing in them can be accepted.

A subtree of small mass is mostly rejected, at the cost of a law for every node in it. But one coin decides each node, so where no
coin is below the most that its node's chance can be, the outcome is known beforehand. No verdict changes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from resispec.core import Draws, Tree
from resispec.verifiers.base import SiblingRule


def lookahead(
    rule: SiblingRule, tree: Tree, target_probs: Tensor, draft_probs: Tensor, drawn: Tensor
) -> tuple[list[float], Callable[[int, float], bool]]:
    """The coins `drawn` (N,) as numbers, and whether any in a node's subtree can show acceptance when the node has a given mass.

    target_probs, draft_probs: (N, V). A rule may promise `is_bounded = True`: for a target a p with odds o = a / (1 - a), its
    residual gives no token y more than o p(y), and what it selects and leaves to a sibling x is at most o p(x) / q(x) together,
    with q = 1 for a point mass. For other rules the answer is always yes. One host synchronisation.
    """
    if not getattr(rule, "is_bounded", False):
        return drawn.tolist(), lambda node, mass: True
    places = torch.tensor(tree.topology.parents[1:], dtype=torch.int64, device=drawn.device), tree.tokens[1:]
    p, q = (probs[places].double() for probs in (target_probs, draft_probs))
    if tree.draws is Draws.POINT_MASS:
        q = torch.ones_like(q)
    ratios = torch.nn.functional.pad(p / q.clamp_min(torch.finfo(q.dtype).tiny), (1, 0))
    coins, ratio = torch.stack((drawn, ratios)).tolist()
    return coins, lambda node, mass: _can_accept(tree.topology.children, coins, ratio, (node, mass))


def _can_accept(
    children: tuple[tuple[int, ...], ...], coins: list[float], ratio: list[float], start: tuple[int, float]
) -> bool:
    """Follow the most that every mass can be, from a node and its mass downwards; what is not a number counts as yes."""
    pending = [start]
    while pending:
        node, mass = pending.pop()
        if not children[node]:
            if not coins[node] >= mass:
                return True
            continue
        odds = mass / (1 - mass) if mass < 0.5 else 1.0
        # Below 1 the odds are also the most that the chance of stopping at the node can be: o (1 - P) / (1 - o P) <= o.
        if not coins[node] >= odds:
            return True
        left = 1.0  # the least that the siblings before leave
        for child in children[node]:
            weight = odds * ratio[child]
            if not weight < left:
                return True
            pending.append((child, weight / left))
            left -= weight
    return False
