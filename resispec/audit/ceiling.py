r"""Ceilings: what no exact rule exceeds at one node, and no exact verifier on a whole tree.

At one node it is the highest probability that a drafted sibling is emitted. For siblings X drawn from the
draft's law this is an optimal transport problem whose dual is a minimum over sets of tokens,
    alpha* = 1 + min_H [P(H) - Pr(all siblings in H)],
and a minimiser is a prefix of the tokens in increasing order of p / q (Hu et al., arXiv 2502.18779). A rule
above alpha* is not exact. How the minimum is computed depends on the kind of draws: see `ceiling` in its
file.

Of whole trees, with tau the number of accepted drafted tokens: for every level l and every set S of paths of
l tokens,
    Pr(tau >= l) <= A_l = P(S) + Pr(not all drafted paths of l tokens lie in S),   E[tau] <= sum_l A_l:
optimal transport on whole paths. With S = {path ratio r = prod p / q < theta} both terms are frequencies,
    A_l = Pr_target rollout(r_l < theta) + Pr_drafted tree(max r_l >= theta).
Every theta gives a valid bound, but the smallest of many noisy ones does not: theta is chosen on one half of
the samples, the bound is measured on the other, and the halves are swapped.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from resispec.core import Tree
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws

Array = NDArray[np.float64]


def ceiling(target_probs: Tensor, draft_probs: Tensor, num_siblings: int, draws: Draws) -> Tensor:
    """alpha* (...), float64, for `num_siblings` siblings drawn from q as `draws` says.

    target_probs, draft_probs: (..., V), laws whose sums are 1 within float32's precision.
    Raises InvalidInput when more distinct siblings are asked for than there are tokens.
    """
    check_siblings(num_siblings, target_probs.shape[-1], draws)
    p = target_probs.double()
    return draws.ceiling(p / p.sum(-1, keepdim=True), draft_probs.double(), num_siblings)


def check_siblings(num_siblings: int, vocab: int, draws: Draws) -> None:
    """Raise InvalidInput unless so many siblings can be drawn from a vocabulary of this size."""
    if num_siblings < 1:
        raise InvalidInput(f"{num_siblings} siblings; allowed: at least 1")
    if draws.are_distinct and num_siblings > vocab:
        raise InvalidInput(f"{num_siblings} distinct siblings of {vocab} tokens; allowed: at most {vocab}")


def tree_log_ratios(tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """The largest path ratio of every level of one tree, (D-1,) float64: max over its nodes of sum log p / q.

    target_probs, draft_probs: (N, V), the laws at every node (as in `decode.Step`). p = 0 gives -inf, and so
    does a level below which nothing was drafted; q = 0 (a draw without replacement after the draft's mass was
    exhausted) gives +inf unless p = 0.
    """
    topology, tokens = tree.topology, tree.tokens
    parents = torch.tensor(topology.parents[1:], device=tokens.device)
    p, q = (rows[parents, tokens[1:]].double().log() for rows in (target_probs, draft_probs))
    steps = torch.cat((p.new_zeros(1), torch.where(p == -math.inf, -math.inf, p - q)))
    levels = []
    for level in topology.levels[1:]:
        nodes = slice(level.start, level.stop)
        steps[nodes] += steps[list(topology.parents[nodes])]
        levels.append(steps[nodes].nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).max())
    return torch.stack(levels) if levels else p.new_zeros(0)


class PathBound(NamedTuple):
    """A bound of E[tau] under every exact verifier, sum_l A_l, and its standard error."""

    accepted: float
    accepted_error: float


def path_bound(target_log_ratios: ArrayLike, tree_max_log_ratios: ArrayLike) -> PathBound:
    """The level-wise bound (U1), held out.

    target_log_ratios: (R, D-1), log prod p / q along R independent rollouts of the target, at every depth.
    tree_max_log_ratios: (T, D-1), per drafted tree and level the largest over its paths, see
    `tree_log_ratios`. Both begin after the same prefixes, over which the bound is a
    mean, and are at least four. Infinite values are allowed, NaN is not.
    """
    rollouts, trees = (np.asarray(ratios, np.float64) for ratios in (target_log_ratios, tree_max_log_ratios))
    halves = [(rollouts[index::2], trees[index::2]) for index in (0, 1)]
    bounds = [_measured(*halves[1 - index], _best_thresholds(*halves[index])) for index in (0, 1)]
    # Each half's bound depends on the other half through theta; the mean of the errors holds for any
    # dependence.
    return PathBound(*(float(sum(parts) / 2) for parts in zip(*bounds, strict=True)))


def _best_thresholds(rollouts: Array, trees: Array) -> Array:
    """theta (D-1,): of all samples, those at which the two frequencies of this half have the smallest sum."""
    best = []
    for low, high in zip(np.sort(rollouts, 0).T, np.sort(trees, 0).T, strict=True):
        candidates = np.concatenate((low, high, [-math.inf, math.inf]))
        # In float32, where sums that differ by rounding alone are ties.
        below, above = (
            np.searchsorted(ordered, candidates).astype(np.float32) / np.float32(len(ordered))
            for ordered in (low, high)
        )
        best.append(candidates[(below + (1 - above)).argmin()])
    return np.array(best)


def _measured(rollouts: Array, trees: Array, thresholds: Array) -> tuple[float, float]:
    """The sum of A_l over levels and its standard error.

    The levels of one sample are dependent, so the error is that of the samples' sums.
    """
    below, above = (rollouts < thresholds).sum(1), (trees >= thresholds).sum(1)
    error = math.sqrt(below.var(ddof=1) / len(below) + above.var(ddof=1) / len(above))
    return below.mean() + above.mean(), error
