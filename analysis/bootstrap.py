"""Percentile bootstrap intervals over prompts for ratios of sums, alone or paired with a baseline.

A prompt is the unit: its steps are dependent. A resample draws n of n prompts with replacement; it is held as
counts, how often each prompt was drawn, so that a statistic of all resamples is one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from resispec.errors import InvalidInput

SEED = 0
NUM_RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A statistic of the measured prompts and its interval; a single prompt has no spread, and NaN bounds."""

    value: float
    lower: float
    upper: float


ABSENT = Interval(np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Ratio:
    """sum(numerator) / sum(denominator) over the prompts of a cell; both are columns of `Results.prompts`."""

    numerator: str
    denominator: str

    def interval(self, prompts: pd.DataFrame, counts: np.ndarray) -> Interval:
        """The ratio of one cell.

        Args:
            prompts: the n prompts of the cell.
            counts: (R, n) float64, from `resample`.
        """
        return _interval(*self._ratios(prompts, counts))

    def paired_gain(self, prompts: pd.DataFrame, baseline: pd.DataFrame, counts: np.ndarray) -> Interval:
        """The cell's ratio over the baseline's, both on the same resampled prompts.

        Args:
            prompts: the n prompts of the cell.
            baseline: the same n prompts in the same order, decoded by the baseline.
            counts: (R, n) float64, from `resample`.

        Raises:
            InvalidInput: when the two cells did not measure the same prompts in the same order.
        """
        if prompts.prompt_id.tolist() != baseline.prompt_id.tolist():
            own, other = prompts.cell_id.iloc[0], baseline.cell_id.iloc[0]
            raise InvalidInput(f"cell {own}: its prompts are not those of {other}")
        value, resampled = self._ratios(prompts, counts)
        baseline_value, baseline_resampled = self._ratios(baseline, counts)
        return _interval(value / baseline_value, resampled / baseline_resampled)

    def _ratios(self, prompts: pd.DataFrame, counts: np.ndarray) -> tuple[float, np.ndarray]:
        """The measured ratio and the R resampled ones."""
        above = prompts[self.numerator].to_numpy(np.float64)
        below = prompts[self.denominator].to_numpy(np.float64)
        return float(above.sum() / below.sum()), (counts @ above) / (counts @ below)


ACCEPTED_LENGTH = Ratio("num_emitted", "num_steps")
TOKENS_PER_S = Ratio("num_emitted", "decode_s")


def resample(
    num_prompts: int, generator: np.random.Generator, num_resamples: int = NUM_RESAMPLES
) -> np.ndarray:
    """How often each prompt is drawn in each resample.

    Returns:
        (num_resamples, num_prompts) float64; every row sums to num_prompts. No rows for a single prompt.
    """
    num_resamples = num_resamples if num_prompts > 1 else 0
    weights = np.full(num_prompts, 1 / num_prompts)
    return generator.multinomial(num_prompts, weights, size=num_resamples).astype(np.float64)


def _interval(value: float, resampled: np.ndarray) -> Interval:
    """The percentile interval at LEVEL; NaN bounds without resamples."""
    if len(resampled) == 0:
        return Interval(value, np.nan, np.nan)
    lower, upper = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(lower), float(upper))
