r"""A ceiling for whole trees: no verifier, exact over sequences, accepts longer paths than this in the mean.

tau is the number of accepted drafted tokens. For every level l and every set S of paths of l tokens,
    Pr(tau >= l) <= A_l = P(S) + Pr(not all drafted paths of l tokens lie in S),   E[tau] <= sum_l A_l:
optimal transport on whole paths. With S = {path ratio r = prod p / q < theta} both terms are frequencies,
    A_l = Pr_target rollout(r_l < theta) + Pr_drafted tree(max r_l >= theta).
Every theta gives a valid bound, but the smallest of many noisy ones does not: theta is chosen on one half of
the samples, the bound is measured on the other, and the halves are swapped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.core import Tree
from resispec.errors import InvalidInput


@dataclass(frozen=True)
class PathBound:
    """What no exact verifier exceeds.

    levels, standard_errors: (D-1,) float64, A_l and its error. accepted: sum_l A_l, a bound of E[tau], with
    its error.
    """

    levels: Tensor
    standard_errors: Tensor
    accepted: float
    accepted_error: float


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


def path_bound(target_log_ratios: Tensor, tree_max_log_ratios: Tensor) -> PathBound:
    """The level-wise bound (U1), held out.

    target_log_ratios: (R, D-1), log prod p / q along R independent rollouts of the target, at every depth.
    tree_max_log_ratios: (T, D-1), per drafted tree and level the largest over its paths. Both begin after the
    same prefixes, over which the bound is a mean. Infinite values are allowed. Raises InvalidInput for NaN,
    different depths or fewer than four samples.
    """
    for name, ratios in (("target rollouts", target_log_ratios), ("drafted trees", tree_max_log_ratios)):
        if ratios.ndim != 2 or len(ratios) < 4 or bool(ratios.isnan().any()):
            raise InvalidInput(
                f"{name}: path ratios of shape {tuple(ratios.shape)}; allowed: (at least 4, D-1), without NaN"
            )
    if target_log_ratios.shape[1] != tree_max_log_ratios.shape[1]:
        raise InvalidInput(
            f"{target_log_ratios.shape[1]} levels of rollouts and {tree_max_log_ratios.shape[1]} of trees; "
            "allowed: equal"
        )
    rollouts, trees = target_log_ratios.double(), tree_max_log_ratios.double()
    halves = [(rollouts[index::2], trees[index::2]) for index in (0, 1)]
    bounds = [_measured(*halves[1 - index], _best_thresholds(*halves[index])) for index in (0, 1)]
    # Each half's bound depends on the other half through theta; the mean of the errors holds for any
    # dependence.
    levels, errors, totals, total_errors = (sum(parts) / 2 for parts in zip(*bounds, strict=True))
    return PathBound(levels, errors, float(totals), float(total_errors))


def _best_thresholds(rollouts: Tensor, trees: Tensor) -> Tensor:
    """theta (D-1,): of all samples, those at which the two frequencies of this half have the smallest sum."""
    best = []
    for low, high in zip(rollouts.T, trees.T, strict=True):
        low, high = low.sort().values, high.sort().values
        candidates = torch.cat((low, high, low.new_tensor([-math.inf, math.inf])))
        below = torch.searchsorted(low, candidates) / len(low)
        above = 1 - torch.searchsorted(high, candidates) / len(high)
        best.append(candidates[(below + above).argmin()])
    return torch.stack(best)


def _measured(rollouts: Tensor, trees: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A_l (D-1,), its standard errors (D-1,), the sum () over levels and its standard error ().

    The levels of one sample are dependent, so the error of the sum is that of the samples' sums.
    """
    below, above = (rollouts < thresholds).double(), (trees >= thresholds).double()
    levels = below.mean(0) + above.mean(0)
    errors = (below.var(0) / len(below) + above.var(0) / len(above)).sqrt()
    total_error = (below.sum(1).var() / len(below) + above.sum(1).var() / len(above)).sqrt()
    return levels, errors, levels.sum(), total_error
