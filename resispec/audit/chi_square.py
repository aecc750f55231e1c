"""A chi-square for martingales: counts against chances that change from one outcome to the next."""

import math

import torch
from torch import Tensor

from resispec.audit.verdict import Statistic

LEAST_EXPECTED = 25.0
"""Cells expected less often are counted together, so that p-values hold far out in the tail, too."""


def chi_squared(value: float, degrees: int, n: int) -> Statistic:
    """The statistic of a chi-square of n outcomes; its value is infinite if the impossible happened.

    z: from the cube root, nearly normal (Wilson and Hilferty 1931). 0 degrees: nothing is random, p_value 1.
    """
    if degrees == 0:
        return Statistic(value, 0.0, 1.0, n, degrees=0)
    unit = 2 / (9 * degrees)
    z = ((value / degrees) ** (1 / 3) - 1 + unit) / math.sqrt(unit)
    half = torch.tensor([degrees / 2, value / 2], dtype=torch.float64)
    return Statistic(value, z, float(torch.special.gammaincc(half[0], half[1])), n, degrees=degrees)


def chi_square(laws: Tensor, cells: Tensor) -> Statistic:
    """Compare n outcomes with the law that each outcome had, however the laws depend on earlier outcomes.

    laws: (n, K) float64, the chances of K cells. cells: (n,) int64, the cell of each outcome. With pi_t the
    law of outcome t, the counts minus sum pi_t have mean 0 and covariance sum (diag(pi_t) - pi_t pi_t^T).
    """
    count = len(cells)
    observed = torch.bincount(cells, minlength=laws.shape[1]).double()
    expected = laws.sum(0)
    impossible = chi_squared(math.inf, 1, count)
    if bool((laws.gather(1, cells[:, None]) <= 0).any()):
        return impossible
    groups = _merged(expected)
    deviation = groups @ (observed - expected)
    covariance = groups @ (expected.diag() - laws.T @ laws) @ groups.T
    variances, axes = torch.linalg.eigh(covariance)
    is_random = variances > 1e-9 * max(1.0, float(variances[-1]))
    components = axes.T @ deviation
    # Components that are not random cannot deviate: the counts add up to n, for example.
    if bool((components[~is_random].abs() > 1e-4 * count).any()):
        return impossible
    statistic = (components[is_random].square() / variances[is_random]).sum()
    return chi_squared(float(statistic), int(is_random.sum()), count)


def _merged(expected: Tensor) -> Tensor:
    """A matrix (G, K) of 0 and 1: the cells of each group, so that every group is expected often enough."""
    groups, group = [], torch.zeros_like(expected)
    for cell in expected.argsort().tolist():
        group[cell] = 1
        if float(group @ expected) >= LEAST_EXPECTED:
            groups.append(group)
            group = torch.zeros_like(expected)
    if bool(group.any()):
        groups = [groups[0] + group, *groups[1:]] if groups else [group]
    return torch.stack(groups)
