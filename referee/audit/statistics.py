"""Statistics of terms: of one arm against the reference model, or of one arm against another.

Each statistic is judged by its p-value, the chance of a value as far out. The tails decide, so the
p-value of a sum is that of Pearson's type III law (a shifted gamma law) with the sum's mean,
variance and third moment: a normal law would misjudge the tails of rare events, such as an end of
sequence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from scipy import stats
from torch import Tensor

from referee.audit.terms import EDGES, FIRST_TOKENS, REPEATS, TokenTerms
from resispec.audit.chi_square import chi_square
from resispec.audit.verdict import Statistic
from resispec.errors import NoVerdict

LARGEST_Z = 1e6
"""The z that stands for an impossible event."""
MOST_SQUARED = 700.0
"""The largest exponent whose power is finite."""
SMALLEST = 1e-300
"""p-values below this count as 0."""
MOST_SKEWED = 0.7
"""Sums of a more skewed law rest on too few events (fewer than 2 expected) and are not judged."""
PLACES = (
    *(f"place {first + 1}-{last}" for first, last in zip((0, *EDGES), EDGES, strict=False)),
    "beyond",
)
"""Names of the buckets."""
FAMILIES = {"repeats": REPEATS, "first tokens": FIRST_TOKENS, "places": PLACES}
"""Statistics that are the worst of several, by name, and the names of these."""
FEWEST_ROWS = 20
"""The fewest first tokens that are judged by themselves."""


def z_of(p_value: float) -> float:
    """|z| of a normal variable with this two-sided p-value."""
    return LARGEST_Z if p_value < SMALLEST else float(stats.norm.isf(p_value / 2))


def normal_z(statistic: Statistic) -> float:
    """|z| of a normal variable with this p-value, or the statistic's own |z| if that is 0."""
    return z_of(statistic.p_value) if statistic.p_value > SMALLEST else abs(statistic.z)


def two_sided(z: float, skewness: float) -> float:
    """Twice the chance that a standardised sum of this skewness lies at z or beyond on its side."""
    if abs(skewness) < 1e-3:  # a gamma law's tail is not computed precisely there
        return 2 * float(stats.norm.sf(abs(z)))
    tail = stats.pearson3.sf if z > 0 else stats.pearson3.cdf
    return min(1.0, 2 * float(tail(z, skewness)))


def from_student(z: float, degrees: int) -> float:
    """Nearly normal equivalent of a value z of Student's law, finite for every z (Wallace 1959)."""
    steps = (8 * degrees + 1) / (8 * degrees + 3)
    return math.copysign(steps * math.sqrt(degrees * math.log1p(z * z / degrees)), z)


def to_student(z: float, degrees: int) -> float:
    """The value of Student's law that `from_student` turns into z.

    It is z itself for 0 degrees, those of a known variance.
    """
    if not degrees:
        return z
    steps = (8 * degrees + 1) / (8 * degrees + 3)
    square = min((z / steps) ** 2 / degrees, MOST_SQUARED)
    return math.copysign(math.sqrt(degrees * math.expm1(square)), z)


@dataclass(frozen=True)
class Sums:
    """Sums of terms divided by the number of tokens: S sums of `names`, then K of the buckets.

    deviation, variance, third: (S + K,) float64, the mean and its second and third central moment.
    n: (S + K,) int64, the number of random terms. inflation: (S + K,) float64, at least 1, the
    factor by which the mean's variance was measured to be larger. degrees: that measurement's
    degrees of freedom, or 0.
    """

    names: tuple[str, ...]
    deviation: Tensor
    variance: Tensor
    third: Tensor
    n: Tensor
    inflation: Tensor
    degrees: int

    def statistics(self) -> dict[str, Statistic]:
        """The statistics that can be judged, by name; the worst of each of FAMILIES stands for all.

        Its p-value and its z are those of the whole family (union bound). Raises NoVerdict for NaN.
        """
        candidates = {
            name: self._statistic(index) for index, name in enumerate((*self.names, *PLACES))
        }
        statistics = {
            name: statistic for name, statistic in candidates.items() if statistic is not None
        }
        for family, names in FAMILIES.items():
            members = [statistics.pop(name) for name in names if name in statistics]
            if family == "first tokens":
                members = [one for one in members if one.n >= FEWEST_ROWS]
            if members:
                worst = _worst(members)
                statistics[family] = replace(worst, z=math.copysign(normal_z(worst), worst.z))
        return statistics

    def variance_of(self, name: str) -> float:
        """The variance of the mean with this name, inflation included."""
        index = self.names.index(name)
        return float(self.variance[index] * self.inflation[index])

    def _statistic(self, index: int) -> Statistic | None:
        inflation = float(self.inflation[index])
        error = math.sqrt(float(self.variance[index]) * inflation)
        cube = error**3  # 0 for events that are too rare for any number
        if cube == 0 or abs(skewness := float(self.third[index]) / cube) > MOST_SKEWED:
            return None
        value = float(self.deviation[index])
        if math.isnan(value) or math.isnan(error):
            raise NoVerdict(
                "a statistic is NaN; allowed: numbers, so take less extreme settings or float32"
            )
        z = value / error
        if inflation > 1:  # the variance is an estimate
            z = from_student(z, self.degrees)
        return Statistic(value, z, two_sided(z, skewness), int(self.n[index]), error)


def statistics_of(terms: TokenTerms, is_shared: bool) -> Mapping[str, Statistic]:
    """The statistics of one arm against the reference model, by name.

    is_shared: see `against_reference`.

    `places` is a chi-square over the buckets, `pit` a Kolmogorov-Smirnov test of the first `pits`.
    If rows share their random numbers, `places` is the bound of `Sums.statistics` and there is no
    `pit`.
    """
    statistics = against_reference(terms, is_shared).statistics()
    inner_terms = terms.where(terms.is_inside)
    if is_shared or not len(inner_terms.row):
        return statistics
    places = chi_square(inner_terms.chances, inner_terms.bucket)
    places = replace(places, z=min(places.z, LARGEST_Z))  # finite for an impossible event
    test = stats.kstest(inner_terms.pits[:, 0].numpy(), "uniform", method="exact")
    value, p_value = float(test.statistic), float(test.pvalue)
    pit = Statistic(
        value, 2 * math.sqrt(len(inner_terms.row)) * value, p_value, len(inner_terms.row)
    )
    return statistics | {"places": places, "pit": replace(pit, z=normal_z(pit))}


def against_reference(terms: TokenTerms, is_shared: bool) -> Sums:
    """One arm's sums against the reference model.

    is_shared: whether rows share their random numbers. If they do, the sum at one position has at
    most the variance of terms that rise and fall together.
    """
    mean, *moments = _moments(terms, is_shared)
    return Sums(terms.names, mean, *moments, torch.ones_like(mean), 0)


def against_control(
    terms: TokenTerms, control: TokenTerms, prompts: Tensor, is_shared: bool
) -> Sums:
    """The difference of two arms' means, with the variances of both.

    If the engine's model is not the reference, both arms drift alike, but not alike at every
    prompt. So the variance is also measured between prompts, and the larger one counts. prompts:
    (N + M,) int64, the number of the prompt of each token, of the first arm and then of the second.
    is_shared: as in `against_reference`, for either arm.
    """
    sides = [_moments(side, is_shared) for side in (terms, control)]
    (mean, variance, third, n), (other, other_variance, other_third, m) = sides
    variance = variance + other_variance
    between, degrees = _between(terms.every[..., 0], control.every[..., 0], prompts)
    inflation = torch.where(variance > 0, between / variance, 1.0).clamp_min(1.0)
    return Sums(terms.names, mean - other, variance, third - other_third, n + m, inflation, degrees)


def sharing(terms: TokenTerms) -> Statistic:
    """A test whether rows share random numbers; large if their `pits` rise and fall together.

    It sums the products of centred `pits` over all pairs of rows that have a token at the same
    position.
    """
    statistics = []
    for pits in terms.pits.T:
        centred = (pits - pits.mean()) * math.sqrt(12)
        columns = torch.stack((centred, centred.square(), torch.ones_like(centred)), -1)
        totals, squares, counts = by_label(columns, terms.position).T
        pairs = counts * (counts - 1) / 2
        number = max(float(pairs.sum()), 1.0)
        z = float((totals.square() - squares).sum()) / 2 / math.sqrt(number)
        # With many rows the squared total at a position is a chi-square with one degree of freedom.
        skewness = float(((2 * pairs) ** 1.5).sum()) / number**1.5
        p_value = two_sided(z, skewness) if z > 0 else 1.0
        statistics.append(Statistic(z / math.sqrt(number), z, p_value, len(pits)))
    return _worst(statistics)


def rate_difference(events: Tensor, control: Tensor, prompts: Tensor) -> Statistic:
    """A test whether rare events have different rates in two arms.

    events, control: (N,) and (M,) bool.

    Given the total, the number in each arm is binomial if events are independent. If one event
    makes the next likelier, the variance between prompts shows it; the larger of both p-values
    counts. prompts: as in `against_control`.
    """
    count = int(events.sum())
    total = int(events.sum() + control.sum())
    share = len(events) / len(prompts)
    upper, lower = stats.binom.sf(count - 1, total, share), stats.binom.cdf(count, total, share)
    p_value = min(1.0, 2 * float(min(upper, lower)))
    first, second = events.double()[:, None], control.double()[:, None]
    difference = float(first.mean() - second.mean())
    between, degrees = _between(first, second, prompts)
    if float(between) > 0:
        student = from_student(difference / math.sqrt(float(between)), degrees)
        p_value = max(p_value, two_sided(student, 0.0))
    return Statistic(difference, math.copysign(z_of(p_value), lower - upper), p_value, len(prompts))


def _worst(statistics: list[Statistic]) -> Statistic:
    """The least likely statistic; its p-value bounds the chance that any is as unlikely."""
    worst = min(statistics, key=lambda statistic: statistic.p_value)
    return replace(worst, p_value=min(1.0, len(statistics) * worst.p_value))


def _moments(terms: TokenTerms, is_shared: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean of deviations, its second and third central moment, the number of random terms.

    is_shared: whether terms at one position may depend on each other in any way. If so, the root of
    a moment of their sum is at most the sum of the roots of their moments (inequalities of
    Cauchy-Schwarz and Hoelder). Otherwise all terms are independent given the tokens before them.
    """
    deviation, variance, third = terms.every.unbind(-1)
    count, num_random = len(deviation), (variance > 0).sum(0)
    if is_shared:
        variance = by_label(variance.sqrt(), terms.position) ** 2
        third = by_label(third.sign() * third.abs() ** (1 / 3), terms.position) ** 3
    return deviation.mean(0), variance.sum(0) / count**2, third.sum(0) / count**3, num_random


def _between(first: Tensor, second: Tensor, prompts: Tensor) -> tuple[Tensor, int]:
    """The variance between prompts (S,) of the difference of two means, and its degrees of freedom.

    first, second: values (N, S) and (M, S). prompts: as in `against_control`.
    """
    parts = ((first - first.mean(0)) / len(first), (second.mean(0) - second) / len(second))
    return by_label(torch.cat(parts), prompts).square().sum(0), max(1, len(prompts.unique()) - 1)


def by_label(values: Tensor, labels: Tensor) -> Tensor:
    """The sums (G, S) of the values (N, S) that share a label (N,) int64 below G."""
    return values.new_zeros(int(labels.max()) + 1, values.shape[1]).index_add_(0, labels, values)
