"""A permutation test of two arms, whose p-value holds in finite samples for any law of the rows.

Rows of one stratum are exchangeable if both arms have one law. So the labels, which of them are
speculative, are shuffled within strata, and a p-value is (1 + the number of shuffles whose
statistic is at least the observed one) / (1 + the number of shuffles). It is valid whatever the
rows depend on and however few there are, as long as the statistic sees the labels in no other way.
It stops early (Besag and Clifford, 1991, "Sequential Monte Carlo p-values"): when ENOUGH shuffles
reach the observed statistic after n, the p-value is ENOUGH / n, which is valid, too.

Several families of counts make one statistic. Of a family, D_f is the count of f in speculative
rows less the count that is expected if labels are shuffled, and T = sum D_f^2 / v_f. The cube root
of T is close to normal (Wilson and Hilferty); its mean and standard deviation over shuffles that
are drawn for this alone standardise it, and the largest of all families is the statistic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import sparse

ENOUGH = 20
"""The shuffles that reach the observed statistic after which no more are drawn."""
CALIBRATION = 300
"""The shuffles that standardise the statistics of families."""
MOST_VALUES = 4_000_000
"""The most numbers of a family that are held at a time."""
Floats = NDArray[np.float64]
Labels = NDArray[np.bool_]
Strata = NDArray[np.int64]


@dataclass(frozen=True)
class Family:
    """Counts of F features in R rows, which may each belong to one of C contexts.

    counts: (F, R), sparse. contexts: (C, R), sparse, the counts of the contexts, or None. context:
    (F,) int64, that of each feature. With contexts D_f is the count of a feature less its share of
    its context's count, so how often contexts come does not count. weights: (F,), 1 / v_f.
    """

    counts: sparse.csr_array
    weights: Floats
    contexts: sparse.csr_array | None = None
    context: NDArray[np.int64] | None = None
    shares: Floats | None = None

    def statistics(self, centred: Floats) -> Floats:
        """T^(1/3) of shuffles, (B,). centred: (R, B), labels less their means in the strata."""
        differences = self.counts @ centred
        if self.contexts is not None:
            expected = (self.contexts @ centred)[self.context]
            differences = differences - self.shares[:, None] * expected
        return np.cbrt(self.weights @ np.square(differences))


def family_of(
    row: Strata, feature: Strata, stratum: Strata, share: Floats, *, least: int = 1, context=None
) -> Family | None:
    """The family of counted features; None if no feature can tell rows apart.

    row, feature: (N,) int64, codes from 0, an entry for each time that a row has a feature.
    stratum: (R,). share: (R,), the share of speculative rows in a row's stratum. least: the fewest
    rows that must have a feature. context: (N,) int64 or None.
    """
    counts = _count(feature, row, len(stratum))
    chosen = np.diff(counts.indptr) >= least
    variances = variance_of(counts, stratum, share)
    if context is None:
        chosen &= variances > 1e-9
        if not chosen.any():
            return None
        return Family(counts[chosen], 1 / variances[chosen])
    contexts = _count(context, row, len(stratum))
    of_feature = np.zeros(counts.shape[0], dtype=np.int64)
    of_feature[feature] = context
    shares = counts.sum(1) / contexts.sum(1)[of_feature]
    scale = variances * (1 - shares)
    chosen &= scale > 1e-9
    if not chosen.any():
        return None
    return Family(counts[chosen], 1 / scale[chosen], contexts, of_feature[chosen], shares[chosen])


def family_of_values(values: Floats, stratum: Strata, share: Floats) -> Family | None:
    """The family of K numbers of each row, (K, R); None if they cannot tell rows apart."""
    counts = sparse.csr_array(np.atleast_2d(values))
    variances = variance_of(counts, stratum, share)
    chosen = variances > 1e-9
    return Family(counts[chosen], 1 / variances[chosen]) if chosen.any() else None


def _count(feature: Strata, row: Strata, num_rows: int) -> sparse.csr_array:
    shape = int(feature.max()) + 1 if len(feature) else 0, num_rows
    matrix = sparse.coo_array((np.ones(len(row)), (feature, row)), shape=shape).tocsr()
    matrix.sum_duplicates()
    return matrix


def variance_of(counts: sparse.csr_array, stratum: Strata, share: Floats) -> Floats:
    """The variance of D_f over shuffles, (F,): that of sums drawn without replacement."""
    sizes = np.bincount(stratum).astype(float)
    shares = share[np.searchsorted(stratum, np.arange(len(sizes)))]
    factor = sizes * shares * (1 - shares) / np.maximum(1, sizes - 1)
    member = sparse.csr_array(
        (np.ones(len(stratum)), (np.arange(len(stratum)), stratum)),
        shape=(len(stratum), len(sizes)),
    )
    sums = (counts @ member).tocsr()
    squares = counts.power(2) @ member
    return np.asarray(squares @ factor - sums.power(2) @ (factor / sizes)).clip(0)


def shares_of(stratum: Strata, labels: Labels) -> Floats:
    """The share of speculative rows in each row's stratum, (R,)."""
    return (np.bincount(stratum, labels) / np.bincount(stratum))[stratum]


def shuffled(stratum: Strata, labels: Labels, number: int, generator: Generator) -> Labels:
    """Labels shuffled within strata, (R, number). stratum: sorted."""
    keys = generator.random((number, len(stratum))) + stratum
    return labels[keys.argsort(axis=1)].T


def log_arrangements(stratum: Strata, labels: Labels) -> float:
    """The natural logarithm of the number of ways to shuffle labels within strata."""
    from scipy.special import gammaln

    sizes, ones = np.bincount(stratum), np.bincount(stratum, labels)
    return float((gammaln(sizes + 1) - gammaln(ones + 1) - gammaln(sizes - ones + 1)).sum())


class PermutationTest:
    """The test of families of counts under shuffles of labels within strata.

    families: by name, at least one. stratum, labels: (R,), of the rows. generator: of the shuffles.
    """

    def __init__(
        self,
        families: Mapping[str, Family],
        stratum: Strata,
        labels: Labels,
        generator: Generator,
        calibration: int = CALIBRATION,
    ) -> None:
        self.families, self.stratum, self.labels = families, stratum, labels
        self.generator, self.share = generator, shares_of(stratum, labels)
        values = self._values(shuffled(stratum, labels, calibration, generator))
        self._mean = values.mean(1, keepdims=True)
        self._deviation = values.std(1, keepdims=True)
        self.calibration = self._standardised(values).max(0)

    def _values(self, labels: Labels) -> Floats:
        """(K, B): the statistics of all families. labels: (R, B)."""
        centred = labels - self.share[:, None]
        rows = []
        for family in self.families.values():
            step = max(1, MOST_VALUES // max(1, len(family.weights)))
            parts = [
                family.statistics(centred[:, first : first + step])
                for first in range(0, centred.shape[1], step)
            ]
            rows.append(np.concatenate(parts))
        return np.stack(rows)

    def _standardised(self, values: Floats) -> Floats:
        scale = np.where(self._deviation > 1e-6, self._deviation, np.inf)
        return (values - self._mean) / scale

    def standardised(self) -> dict[str, float]:
        """The standardised statistic of each family, for the labels as they are."""
        values = self._standardised(self._values(self.labels[:, None]))[:, 0]
        return dict(zip(self.families, values.tolist(), strict=True))

    def p_value(self, most: int) -> float:
        """The p-value of the largest statistic, from `most` shuffles at most."""
        observed = max(self.standardised().values()) - 1e-6  # rounding counts as a tie
        reached = drawn = 0
        while drawn < most:
            number = min(500, most - drawn)
            labels = shuffled(self.stratum, self.labels, number, self.generator)
            largest = self._standardised(self._values(labels)).max(0)
            hits = np.cumsum(largest >= observed) + reached
            if hits[-1] >= ENOUGH:
                return ENOUGH / (drawn + int(np.searchsorted(hits, ENOUGH)) + 1)
            reached, drawn = int(hits[-1]), drawn + number
        return (1 + reached) / (1 + most)
