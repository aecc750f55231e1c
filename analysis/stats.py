"""Intervals: percentile bootstraps over prompts for ratios of sums, alone or paired; and ceilings.

A prompt is the unit, since its steps depend on each other. A resample draws n of n prompts with
replacement. It is stored as the count of draws of each prompt, so that a statistic of all resamples
is one matrix product.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from resispec.audit.path_bound import path_bound

NUM_RESAMPLES = 10_000
LEVEL = 0.95
BRACKETS = (
    f"Brackets: {100 * LEVEL:.0f} % percentile bootstrap over prompts ({NUM_RESAMPLES:,} "
    "resamples), paired where two cells are compared; they cover the variation between prompts, "
    "not between runs."
)

MIN_PROMPTS = 8
"""The smallest number of prompts with an interval: resamples of fewer vary too little."""
FEW_PROMPTS = (
    f"A number of fewer than {MIN_PROMPTS} prompts has no brackets: resamples of so few vary less "
    "than prompts do."
)

RUN_SPREAD = 0.14
"""Standard deviation of log tokens/s over separate runs of a cell: docs/studies/run_spread.csv."""

# Numerators and denominators: one number per prompt, (n,) each.
PairOfSums: TypeAlias = tuple[ArrayLike, ArrayLike]


@dataclass(frozen=True)
class Interval:
    """A statistic of prompts and its interval; the bounds are NaN below MIN_PROMPTS prompts."""

    value: float
    lower: float = np.nan
    upper: float = np.nan


ABSENT = Interval(np.nan)


@lru_cache(maxsize=8)
def resample(num_prompts: int) -> np.ndarray:
    """Counts of the draws of each prompt in each resample, (NUM_RESAMPLES, num_prompts) float64.

    All cells with the same number of prompts get the same counts, so that these cells are paired.
    Fewer than MIN_PROMPTS prompts give no rows.
    """
    weights = np.full(num_prompts, 1 / num_prompts)
    size = NUM_RESAMPLES if num_prompts >= MIN_PROMPTS else 0
    return np.random.default_rng(0).multinomial(num_prompts, weights, size=size).astype(np.float64)


def ratio(above: ArrayLike, below: ArrayLike) -> Interval:
    """sum(above) / sum(below), with its interval.

    Resamples whose denominator is 0 are left out; the value is NaN if the denominator of all
    prompts is 0.
    """
    return _interval([(above, below)])


def paired_gain(own: PairOfSums, baseline: PairOfSums) -> Interval:
    """Ratio of `own` over that of `baseline`, on the same resampled prompts; else like `ratio`."""
    above, below = baseline
    return _interval([own, (below, above)])


def paired_difference(own: PairOfSums, baseline: PairOfSums, level: float = LEVEL) -> Interval:
    """The ratio of `own` less that of `baseline`, on the same resampled prompts; else like `ratio`.

    level: of the interval.
    """
    values, resamples = zip(*map(resampled, (own, baseline)), strict=True)
    return _bounded(values[0] - values[1], resamples[0] - resamples[1], level)


def across_runs(gain: Interval) -> Interval:
    """The ratio of two runs, its interval widened by RUN_SPREAD: independent errors of its log."""
    margin = 1.96 * np.sqrt(2) * RUN_SPREAD
    logs = np.log([gain.lower / gain.value, gain.upper / gain.value])
    lower, upper = gain.value * np.exp(np.hypot(logs, margin) * [-1, 1])
    return Interval(gain.value, float(lower), float(upper))


def divide(above: ArrayLike, below: ArrayLike) -> np.ndarray:
    """above / below, NaN where `below` is 0."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below != 0)


def _interval(factors: list[PairOfSums]) -> Interval:
    """The product of ratios of sums, with its interval."""
    value, resamples = 1.0, np.ones(())
    for factor in factors:
        ratio_of_all, ratios = resampled(factor)
        value = value * ratio_of_all
        resamples = resamples * ratios
    return _bounded(value, resamples, LEVEL)


def resampled(sums: PairOfSums) -> tuple[float, np.ndarray]:
    """A ratio of sums, and each resample's, (NUM_RESAMPLES,); none below MIN_PROMPTS prompts."""
    above, below = (np.asarray(numbers, np.float64) for numbers in sums)
    draws = resample(len(above))
    return float(divide(above.sum(), below.sum())), divide(draws @ above, draws @ below)


def _bounded(value: float, resamples: np.ndarray, level: float) -> Interval:
    """A statistic with the quantiles of its resamples; without bounds if there are none."""
    resamples = resamples[~np.isnan(resamples)]
    if np.isnan(value) or not len(resamples):
        return Interval(value)
    lower, upper = np.quantile(resamples, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(lower), float(upper))


def in_halves(by_prompt: Iterable[Sequence[Sequence[float]]]) -> np.ndarray:
    """Samples (S, D-1) in an order that `path_bound` halves without a prompt in both halves.

    by_prompt: [prompt][sample][level]. Prompts go to the halves in turn; the surplus samples of the
    longer half are left out.
    """
    prompts = list(by_prompt)
    halves = [[sample for samples in prompts[start::2] for sample in samples] for start in (0, 1)]
    pairs = [sample for pair in zip(*halves, strict=False) for sample in pair]
    return np.array(pairs, np.float64).reshape(len(pairs), len(prompts[0][0]))


def ceiling(rollouts: Iterable[Any], trees: Iterable[Any]) -> Interval:
    """1 + the bound of the accepted tokens, with 1.96 standard errors; NaN with too few samples.

    rollouts, trees: log ratios, [prompt][sample][level]. Fewer than MIN_PROMPTS give no interval.
    """
    by_prompt = list(rollouts)
    samples = [in_halves(of_prompts) for of_prompts in (by_prompt, trees)]
    if min(map(len, samples)) < 4:
        return ABSENT
    accepted, error = path_bound(*samples)
    if len(by_prompt) < MIN_PROMPTS:
        return Interval(1 + accepted)
    return Interval(1 + accepted, 1 + accepted - 1.96 * error, 1 + accepted + 1.96 * error)


def few_prompts(counts: Iterable[int]) -> tuple[str, ...]:
    """The note FEW_PROMPTS if any of these numbers of prompts is too small; else nothing."""
    return (FEW_PROMPTS,) if any(count < MIN_PROMPTS for count in counts) else ()
