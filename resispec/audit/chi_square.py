"""A chi-square for martingales: counts against chances that change from one outcome to the next."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from resispec.audit.verdict import Statistic

LEAST_EXPECTED = 25.0
"""Cells expected less often are counted together, so that p-values hold far out in the tail."""


def chi_squared(value: float, degrees: int, n: int) -> Statistic:
    """The statistic of a chi-square of n outcomes, of infinite value if the impossible happened.

    z: from the cube root, nearly normal (Wilson and Hilferty 1931). 0 degrees: nothing is random,
    p_value 1. Raises FloatingPointError for NaN.
    """
    if math.isnan(value):
        raise FloatingPointError("a chi-square's terms are NaN; laws are finite and sum to 1")
    if degrees == 0:
        return Statistic(value, 0.0, 1.0, n, degrees=0)
    unit = 2 / (9 * degrees)
    z = ((value / degrees) ** (1 / 3) - 1 + unit) / math.sqrt(unit)
    half = torch.tensor([degrees / 2, value / 2], dtype=torch.float64)
    return Statistic(value, z, float(torch.special.gammaincc(half[0], half[1])), n, degrees=degrees)


def chi_square(laws: Tensor, cells: Tensor) -> Statistic:
    """`chi_square_of_counts` of n outcomes by their laws (n, K) float64 and cells (n,) int64."""
    return chi_square_of_counts(laws, one_hot(cells, laws.shape[1]))


def chi_square_of_counts(laws: Tensor, counts: Tensor) -> Statistic:
    """Compare counts of outcomes with their laws, however the laws depend on earlier outcomes.

    laws: (R, K) float64, the chances of K cells. counts: (R, K), how often outcomes with the law of
    this row were in each cell. With pi_t the law of outcome t, the counts minus sum pi_t have mean
    0 and covariance sum (diag(pi_t) - pi_t pi_t^T).
    """
    counts = counts.double()
    if not bool(laws.isfinite().all()):  # comparisons with NaN are false, so nothing would be seen
        raise FloatingPointError("a chi-square's laws are not finite; laws are and sum to 1")
    sizes = counts.sum(1, keepdim=True)
    count = int(sizes.sum())
    observed, expected = counts.sum(0), (sizes * laws).sum(0)
    if bool(counts[laws <= 0].any()):
        return chi_squared(math.inf, 1, count)
    groups = _merged(expected)
    covariance = expected.diag() - laws.T @ (sizes * laws)
    return of_sums(groups @ (observed - expected), groups @ covariance @ groups.T, count)


def of_sums(sums: Tensor, covariance: Tensor, count: int) -> Statistic:
    """The chi-square of sums (K,) of `count` terms; mean 0, covariance (K, K), all float64."""
    if not bool(sums.isfinite().all() and covariance.isfinite().all()):
        raise FloatingPointError("a chi-square's sums are not finite; laws are and sum to 1")
    variances, axes = torch.linalg.eigh(covariance)
    is_random = variances > 1e-9 * max(1.0, float(variances[-1]))
    components = axes.T @ sums
    # Components that are not random cannot deviate: the counts add up to their number, for example.
    if bool((components[~is_random].abs() > 1e-4 * count).any()):
        return chi_squared(math.inf, 1, count)
    statistic = (components[is_random].square() / variances[is_random]).sum()
    return chi_squared(float(statistic), int(is_random.sum()), count)


def summed(parts: Sequence[Statistic]) -> Statistic:
    """The sum of independent chi-squares, which is one itself."""
    return chi_squared(
        sum(part.value for part in parts),
        sum(part.degrees for part in parts),
        sum(part.n for part in parts),
    )


def _merged(expected: Tensor) -> Tensor:
    """The cells of groups that are expected often enough: a matrix (G, K) of 0 and 1."""
    groups, group = [], torch.zeros_like(expected)
    for cell in expected.argsort().tolist():
        group[cell] = 1
        if float(group @ expected) >= LEAST_EXPECTED:
            groups.append(group)
            group = torch.zeros_like(expected)
    if bool(group.any()):
        groups = [groups[0] + group, *groups[1:]] if groups else [group]
    return torch.stack(groups)
