"""The path bound of exact verifiers' acceptance on whole trees, from samples of both models.

Without torch.

With tau the number of accepted drafted tokens, bounds hold for every level l and every set S of
paths of l tokens, by optimal transport on whole paths:

    Pr(tau >= l) <= A_l = P(S) + Pr(not all drafted paths of l tokens lie in S)
    E[tau] <= sum_l A_l

With S = {path ratio r = prod p / q < theta} both terms are frequencies:

    A_l = Pr_target rollout(r_l < theta) + Pr_drafted tree(max r_l >= theta)

Every theta gives a valid bound, but the smallest of many noisy bounds is not valid. So theta is
chosen on one half of the samples, the bound is measured on the other half, and the halves are
swapped.
"""

import math

import numpy as np
from numpy.typing import NDArray

from resispec.errors import InvalidInput

Array = NDArray[np.float64]


def path_bound(rollouts: Array, trees: Array) -> tuple[float, float]:
    """The level-wise bound (U1) sum_l A_l of E[tau] from held-out samples, and its standard error.

    rollouts: (R, D-1), log prod p / q along R independent rollouts of the target, at every depth.
    trees: (T, D-1), per drafted tree and level the largest over its paths, see
    `resispec.audit.ceiling.tree_log_ratios`. Both begin after the same prefixes, over which the
    bound is a mean, and have at least four samples. Infinite values are allowed, NaN raises
    InvalidInput.
    """
    for name, ratios in (("rollouts", rollouts), ("trees", trees)):
        if np.isnan(ratios).any():
            raise InvalidInput(
                f"the path ratios of {name} hold NaN; allowed: numbers, infinite too"
            )
    halves = [(rollouts[index::2], trees[index::2]) for index in (0, 1)]
    bounds = [_measured(*halves[1 - index], _best_thresholds(*halves[index])) for index in (0, 1)]
    # Each half's bound depends on the other half through theta; the mean of the errors is valid for
    # any dependence.
    accepted, error = (float(sum(parts) / 2) for parts in zip(*bounds, strict=True))
    return accepted, error


def _best_thresholds(rollouts: Array, trees: Array) -> Array:
    """The theta (D-1,) of each level: the sample value with the least sum of both frequencies."""
    thresholds = []
    for low, high in zip(np.sort(rollouts, 0).T, np.sort(trees, 0).T, strict=True):
        candidates = np.concatenate((low, high, [-math.inf, math.inf]))
        # In float32, where sums that differ by rounding alone are ties.
        below, above = (
            np.searchsorted(ratios, candidates).astype(np.float32) / np.float32(len(ratios))
            for ratios in (low, high)
        )
        thresholds.append(candidates[(below + (1 - above)).argmin()])
    return np.array(thresholds)


def _measured(rollouts: Array, trees: Array, thresholds: Array) -> tuple[float, float]:
    """The sum of A_l over levels and its standard error.

    The levels of one sample are dependent, so the error is that of the samples' sums.
    """
    below, above = (rollouts < thresholds).sum(1), (trees >= thresholds).sum(1)
    error = math.sqrt(below.var(ddof=1) / len(below) + above.var(ddof=1) / len(above))
    return below.mean() + above.mean(), error
