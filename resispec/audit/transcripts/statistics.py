"""From terms to statistics: one arm against the reference model, or one arm against another.

Every statistic is judged by the chance of one as far out, see `chances`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.audit.chi_square import chi_square
from resispec.audit.transcripts.chances import LARGEST_Z, from_student, kolmogorov, two_sided, z_of
from resispec.audit.transcripts.terms import EDGES, Terms, bucket_terms

MOST_SKEWED = 0.7
"""Sums whose law is more skewed than this are made of too few events (a count of 2) and are not judged."""
PLACES = (*(f"place {first + 1}-{last}" for first, last in zip((0, *EDGES), EDGES, strict=False)), "beyond")
"""The names of the buckets."""


@dataclass(frozen=True)
class Statistic:
    """What is close to a standard normal, from n tokens, and the chance of one at least as far from 0."""

    z: float
    p_value: float
    n: int


@dataclass(frozen=True)
class Sums:
    """Sums of terms, each divided by the number of tokens: those of `names`, then those of the buckets.

    deviation, variance, third: (S + K,) float64, the mean and its second and third central moment. n:
    (S + K,) int64, how many of the terms are random. inflation: (S + K,) float64, from 1, by how much the
    mean's variance was found to be larger, with this many `degrees` of freedom.
    """

    names: tuple[str, ...]
    deviation: Tensor
    variance: Tensor
    third: Tensor
    n: Tensor
    inflation: Tensor
    degrees: int

    def statistics(self) -> dict[str, Statistic]:
        """Those that can be judged, by name; of the buckets `places` alone, the worst one's.

        The probability of the worst is that of all buckets together (union bound).
        """
        found = {}
        for index, name in enumerate((*self.names, *PLACES)):
            statistic = self._statistic(index)
            if statistic is not None:
                found[name] = statistic
        buckets = [found.pop(name) for name in PLACES if name in found]
        if buckets:
            worst = min(buckets, key=lambda one: one.p_value)
            found["places"] = Statistic(worst.z, min(1.0, worst.p_value * len(buckets)), worst.n)
        return found

    def variance_of(self, name: str) -> float:
        """The variance of a mean by its name, inflation included."""
        index = self.names.index(name)
        return float(self.variance[index] * self.inflation[index])

    def _statistic(self, index: int) -> Statistic | None:
        variance, inflation = float(self.variance[index]), float(self.inflation[index])
        deviation = math.sqrt(variance * inflation)
        if deviation == 0 or abs(skewness := float(self.third[index]) / deviation**3) > MOST_SKEWED:
            return None
        z = float(self.deviation[index]) / deviation
        if inflation > 1:  # the variance is an estimate
            z = from_student(z, self.degrees)
        return Statistic(z, two_sided(z, skewness), int(self.n[index]))


def statistics_of(terms: Terms, is_shared: bool) -> dict[str, Statistic]:
    """One arm's statistics against the reference model by name; is_shared: see `against_reference`.

    Where rows share their random numbers, `places` is a bound and there is no `pit`.
    """
    found = against_reference(terms, is_shared).statistics()
    return found if is_shared else found | omnibus(terms)


def against_reference(terms: Terms, is_shared: bool) -> Sums:
    """One arm's sums against what they are under the reference model.

    is_shared: rows share their random numbers. Then the sum at one position has at most the variance of terms
    that go up and down together.
    """
    every = _every(terms)
    deviation, variance, third = _moments(every, terms.position if is_shared else None)
    return Sums(terms.names, deviation, variance, third, _random(every), torch.ones_like(variance), 0)


def against_control(terms: Terms, control: Terms, prompts: Tensor, is_shared: bool) -> Sums:
    """The difference of two arms' means, over the variances of both.

    A model that is not the reference drifts in both arms alike, but not at every prompt alike. So the
    variance is also taken between prompts, and the larger one counts. prompts: (N + M,) int64, which prompt
    each token of the first and of the second arm continues. is_shared: as above, in either arm.
    """
    first, second = _every(terms), _every(control)
    mean, *spread = _moments(first, terms.position if is_shared else None)
    other, *other_spread = _moments(second, control.position if is_shared else None)
    variance, third = spread[0] + other_spread[0], spread[1] - other_spread[1]
    between = _between(first[..., 0], second[..., 0], prompts)
    inflation = torch.where(variance > 0, between / variance, 1.0).clamp_min(1.0)
    n = _random(first) + _random(second)
    return Sums(terms.names, mean - other, variance, third, n, inflation, _degrees(prompts))


def omnibus(terms: Terms) -> dict[str, Statistic]:
    """`places`, a chi-square over the buckets, and `pit`, Kolmogorov and Smirnov's of the places' masses."""
    inside = terms.where(terms.is_inside)
    if not len(inside.row):
        return {}
    found = chi_square(inside.chances, inside.bucket)
    # The cube root of a chi-square is nearly normal (Wilson and Hilferty 1931).
    step = 2 / (9 * max(1, found.degrees))
    z = ((found.statistic / max(1, found.degrees)) ** (1 / 3) - 1 + step) / math.sqrt(step)
    places = Statistic(min(z, LARGEST_Z), found.p_value, found.n)
    return {"places": places, "pit": Statistic(*kolmogorov(inside.pits[:, 0]), len(inside.row))}


def sharing(terms: Terms) -> Statistic:
    """Do rows draw with the same random numbers? Large when their places go up and down together.

    Over all pairs of rows that have a token at the same position, the products of their centred `pits`.
    """
    found = []
    for pits in terms.pits.T:
        centred = (pits - pits.mean()) * math.sqrt(12)
        columns = torch.stack((centred, centred.square(), torch.ones_like(centred)), -1)
        totals, squares, counts = _by_label(columns, terms.position).T
        pairs = counts * (counts - 1) / 2
        number = max(float(pairs.sum()), 1.0)
        z = float((totals.square() - squares).sum()) / 2 / math.sqrt(number)
        # With many rows the squared total at a position is a chi-square with one degree of freedom.
        skewness = float(((2 * pairs) ** 1.5).sum()) / number**1.5
        found.append(Statistic(z, two_sided(z, skewness) if z > 0 else 1.0, len(pits)))
    worst = min(found, key=lambda one: one.p_value)
    return Statistic(worst.z, min(1.0, len(found) * worst.p_value), worst.n)


def rate_difference(events: Tensor, control: Tensor, prompts: Tensor) -> Statistic:
    """Do two arms have rare events at different rates? events, control: (N,) and (M,) bool, for each token.

    Given their total each arm's number is binomial where events are independent. Where one makes the next
    likelier, the variance between prompts says so; what surprises less counts. prompts: as in
    `against_control`.
    """
    count, other, share = int(events.sum()), int(control.sum()), len(events) / len(prompts)
    total = count + other
    chances = [
        math.exp(
            math.lgamma(total + 1) - math.lgamma(number + 1) - math.lgamma(total - number + 1)
            + number * math.log(share) + (total - number) * math.log1p(-share)
        )
        for number in range(total + 1)
    ]  # fmt: skip
    upper, lower = math.fsum(chances[count:]), math.fsum(chances[: count + 1])
    p_value = min(1.0, 2 * min(upper, lower))
    first, second = events.double()[:, None], control.double()[:, None]
    if (between := float(_between(first, second, prompts))) > 0:
        z = float(first.mean() - second.mean()) / math.sqrt(between)
        p_value = max(p_value, two_sided(from_student(z, _degrees(prompts)), 0.0))
    return Statistic(math.copysign(z_of(p_value), lower - upper), p_value, len(prompts))


def _every(terms: Terms) -> Tensor:
    """(N, S + K, 3): the terms of `names`, then those of the buckets."""
    return torch.cat((terms.sums, bucket_terms(terms)), 1)


def _moments(every: Tensor, clusters: Tensor | None) -> list[Tensor]:
    """The mean of the deviations, and the second and third central moment of that mean, (S + K,) each.

    clusters: (N,) int64, in which the terms may depend on each other in any way; by the inequalities of
    Cauchy-Schwarz and Hoelder the root of a moment of their sum is at most the sum of the roots. None where
    all terms are independent given what was before.
    """
    mean, found = every[..., 0].mean(0), [every[..., power].sum(0) for power in (1, 2)]
    if clusters is not None:
        roots = every[..., 1].sqrt(), every[..., 2].sign() * every[..., 2].abs() ** (1 / 3)
        found = [
            (_by_label(root, clusters) ** power).sum(0) for power, root in zip((2, 3), roots, strict=True)
        ]
    return [mean, *(moment / len(every) ** power for power, moment in zip((2, 3), found, strict=True))]


def _between(first: Tensor, second: Tensor, prompts: Tensor) -> Tensor:
    """The variance (S,) between prompts of the difference of two arms' means, of values (N, S) and (M, S)."""
    parts = ((first - first.mean(0)) / len(first), (second.mean(0) - second) / len(second))
    return _by_label(torch.cat(parts), prompts).square().sum(0)


def _degrees(prompts: Tensor) -> int:
    """Of freedom, of a variance between these prompts."""
    return max(1, len(prompts.unique()) - 1)


def _random(every: Tensor) -> Tensor:
    return (every[..., 1] > 0).sum(0)


def _by_label(values: Tensor, labels: Tensor) -> Tensor:
    """The sums (G, S) of the values (N, S) that share a label (N,) int64 below G."""
    totals = values.new_zeros(int(labels.max()) + 1, values.shape[1])
    return totals.index_add_(0, labels, values)
