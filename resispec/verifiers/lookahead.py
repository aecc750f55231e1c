"""Which subtrees of a tree that is verified from the leaves up need no law, because nothing in them can be accepted.

A subtree of small mass is mostly rejected, at the cost of a law for every node in it. But one coin decides each node, so where no
coin is below the most that its node's chance can be, the outcome is known beforehand. No verdict changes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from resispec.core import Tree
from resispec.verifiers.base import SiblingRule


def lookahead(
    rule: SiblingRule, tree: Tree, target_probs: Tensor, draft_probs: Tensor, coins: Tensor
) -> tuple[list[float], Callable[[int, float], bool]]:
    """The coins (N,) as numbers, and whether a node of the given mass or one below it can be accepted.

    target_probs, draft_probs: (N, V). A rule may promise `is_bounded = True`: for a target a p it selects a sibling x with
    probability a / (1 - a) p(x) / q(x) at most, and leaves a token y at most a / (1 - a) p(y) of the residual. With another rule
    everything can be accepted. One host synchronisation.
    """
    if not getattr(rule, "is_bounded", False):
        return coins.tolist(), lambda node, mass: True
    children = tree.topology.children
    places = torch.tensor(tree.topology.parents[1:], device=coins.device), tree.tokens[1:]
    p, q = (probs[places].double() for probs in (target_probs, draft_probs))
    # A child's weight is what the rule selects and what the residual gives to its token; the root has no weight.
    gains = torch.nn.functional.pad(p / q.clamp_min(torch.finfo(q.dtype).tiny) + p, (1, 0))
    thresholds, gain = torch.stack((coins, gains)).tolist()

    def can_accept(node: int, mass: float) -> bool:
        pending = [(node, mass)]
        while pending:
            node, mass = pending.pop()
            if not children[node]:
                if thresholds[node] < mass:
                    return True
                continue
            odds = mass / (1 - mass) if mass < 0.5 else 1.0
            # With odds below 1 they also bound the chance of stopping at the node.
            if not thresholds[node] >= odds:
                return True
            left = 1.0
            for child in children[node]:
                weight = odds * gain[child]
                if not weight < left:
                    return True
                pending.append((child, weight / left))
                left -= weight
        return False

    return thresholds, can_accept
