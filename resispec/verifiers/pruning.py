"""Pruning of subtrees in which no node can be accepted, in verification from the leaves up.

Every node is decided by one uniform number, its coin, which is drawn beforehand: the node is
accepted only if its coin is below the node's chance. The exact chance requires the law of every
node on the way there, but an upper bound of the chance is a product of a few numbers. If all coins
of a subtree are at least the bounds of their nodes' chances, the subtree is skipped without
computing its laws. No verdict changes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from resispec.core import Tree
from resispec.distributions import quotient
from resispec.verifiers.base import SiblingRule, distance


def lookahead(
    rule: SiblingRule, tree: Tree, target_probs: Tensor, draft_probs: Tensor, drawn: Tensor
) -> tuple[list[float], Callable[[int, float], bool]]:
    """Read the coins and the bounds of chances from the device, with one host synchronisation.

    target_probs, draft_probs: (N, V). drawn: (N,) float64, the coins. Returns the coins as numbers,
    and a function of a node with children and the mass a with which it is examined, which says
    whether the node or anything below it can still be accepted.

    The bounds rest on a promise that a rule may make with the attribute `is_bounded = True`. For a
    target of mass a with odds o = a / (1 - a), the rule's residual gives no token y more than
    o p(y), and a sibling x gets by selection and residual together at most o p(x) / q(x), where
    q(x) is the chance of x under the sibling's own law, see `DrawsKind.least_chances`. For other
    rules the function always returns True. So it does for a class that inherits the promise and has
    a law of its own, of which nobody has promised anything.
    """
    made_by = min(distance(rule, name) for name in ("law", "reshape", "in_turn"))
    if not getattr(rule, "is_bounded", False) or distance(rule, "is_bounded") > made_by:
        return drawn.tolist(), lambda node, mass: True
    places = (
        torch.tensor(tree.topology.parents[1:], dtype=torch.int64, device=drawn.device),
        tree.tokens[1:],
    )
    p, q = (probs[places].double() for probs in (target_probs, draft_probs))
    q = tree.draws.least_chances(q)
    ratios = torch.nn.functional.pad(quotient(p, q), (1, 0))
    coins, ratio = torch.stack((drawn, ratios)).tolist()
    return coins, lambda node, mass: _can_accept(tree.topology.children, coins, ratio, (node, mass))


def _can_accept(
    children: tuple[tuple[int, ...], ...],
    coins: list[float],
    ratio: list[float],
    start: tuple[int, float],
) -> bool:
    """Whether any coin in a subtree is below the bound of its node's chance; NaN counts as yes.

    coins, ratio: for each node, its coin and p / q of its token. start: the subtree's root and the
    mass with which it is examined.
    """
    stack = [start]  # nodes, each with the largest mass that it can have
    while stack:
        node, mass = stack.pop()
        if not children[node]:
            if not coins[node] >= mass:
                return True
            continue
        odds = mass / (1 - mass) if mass < 0.5 else 1.0
        # The odds also bound the chance of stopping at the node. With P the mass that the rule
        # gives to all siblings together, that chance is o (1 - P) / (1 - o P) <= o, as long as o is
        # at most 1.
        if not coins[node] >= odds:
            return True
        rest = 1.0  # the least mass that the earlier siblings leave
        for child in children[node]:
            weight = odds * ratio[child]
            if not weight < rest:
                return True
            stack.append((child, weight / rest))
            rest -= weight
    return False
