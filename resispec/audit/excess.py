"""The excess of the emitted law over the target's, given one drafted tree: a bound of any bias.

Let a step pass node v of a drafted tree if it emits the tokens down to v and at least one more, and
let S(v) be the chance of that, given the tree. Over all drafts, for tokens x and a token y,

    E sum_v [ Pr(v is passed, and y follows) - S(v) p_v(y) ],    v: the nodes whose path holds x,

is Pr(a step emits x, y, ...) - Pr(a step emits x and one more token) p(y | x). For an exact
verifier it is 0 for all x and y, also for one that decides about whole trees: what it emits too
rarely after x it leaves to steps that end with x, which the target goes on from. For any other one
the positive parts, added up over x and y, are the bias of a step: of each of its tokens the total
variation from the target's law, given the tokens before it. A step that has ended adds nothing.

So for every set of pairs (x, y) that is fixed beforehand the expected sum is at most the bias of a
step. The sets here are unions of classes of tokens; a class depends on p_v and q_v alone. Classes
are the same after all prefixes and at all depths, unlike tokens, so one tree a prefix is enough.
"""

import torch
from torch import Tensor

from resispec.core import Tree
from resispec.verifiers.base import Outcomes

RATIOS = (0.5, 1.0, 2.0)
"""Ends of the ranges of q / p."""
SHARES = (0.1, 1.0)
"""Ends of the ranges of p over the largest p; the likeliest token is in the last range."""
NUM_CLASSES = (len(RATIOS) + 1) * (len(SHARES) + 1)


def passed(tree: Tree, stop: Tensor) -> Tensor:
    """The chance (N,) float64 that the walk reaches each node, given the drafted tree.

    stop: (N,), see `Outcomes`.
    """
    parents = torch.tensor(tree.topology.parents, device=stop.device)
    chances = stop.double()
    for level in reversed(tree.topology.levels[1:]):
        nodes = slice(level.start, level.stop)
        chances = chances.index_add(0, parents[nodes], chances[nodes])
    return chances


def token_classes(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """The class of every token, (..., V) int64 below NUM_CLASSES, from laws (..., V)."""
    ratios, shares = (target_probs.new_tensor(ends) for ends in (RATIOS, SHARES))
    ratio = torch.where(target_probs > 0, draft_probs / target_probs, torch.inf)
    share = target_probs / target_probs.amax(-1, keepdim=True)
    of_ratio = torch.bucketize(ratio, ratios, right=True)
    return torch.bucketize(share, shares, right=True) * (len(RATIOS) + 1) + of_ratio


def tree_excess(
    tree: Tree, outcomes: Outcomes, target_probs: Tensor, draft_probs: Tensor
) -> Tensor:
    """The excess of every class, (NUM_CLASSES,) float64, in tokens a step, given one drafted tree.

    outcomes: those of a verifier on the tree. target_probs, draft_probs: (N, V), read at nodes with
    children alone, since the token behind a leaf is the target's.
    """
    topology, device = tree.topology, target_probs.device
    reached, total = passed(tree, outcomes.stop), torch.zeros(NUM_CLASSES, dtype=torch.float64)
    total = total.to(device)
    for level in topology.levels[:-1]:  # a level at a time takes little memory
        inner = [node for node in level if topology.children[node] and reached[node] > 0]
        if not inner:
            continue
        p, q, final = (rows[inner].double() for rows in (target_probs, draft_probs, outcomes.final))
        excess = outcomes.stop[inner].double()[:, None] * final - reached[inner][:, None] * p
        rows = [row for row, node in enumerate(inner) for _ in topology.children[node]]
        children = [child for node in inner for child in topology.children[node]]
        place = torch.tensor(rows, device=device), tree.tokens[children]
        excess = excess.index_put(place, reached[children], accumulate=True)
        total = total.index_add(0, token_classes(p, q).flatten(), excess.flatten())
    return total
