"""Lines of log tokens over the overlap of draft and target, and where two of them cross."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analysis.stats import Interval


class Crossing(NamedTuple):
    """The overlap at which the line of a method crosses that of another one.

    overlap: infinite if the method does not come nearer to the other as the overlap rises. least,
    most: of the overlaps that were measured. leads: by how much the method's line lies above the
    other one at these two, in log tokens.
    """

    overlap: Interval
    least: float
    most: float
    leads: tuple[float, float]


@dataclass(frozen=True)
class Fit:
    """Least-squares lines of log tokens over the overlap, one point a pair.

    overlaps: (K,), with `drawn_overlaps` (R, K) of the resamples; logs, drawn_logs: the same of the
    logarithm of tokens a step, by method.
    """

    overlaps: np.ndarray
    drawn_overlaps: np.ndarray
    logs: Mapping[Hashable, np.ndarray]
    drawn_logs: Mapping[Hashable, np.ndarray]

    def line(self, method: Hashable) -> tuple[float, float]:
        """The slope of a method's line, and its value at overlap 0."""
        slope, intercept = np.polyfit(self.overlaps, self.logs[method], 1)
        return float(slope), float(intercept)

    def crossing(self, method: Hashable, other: Hashable) -> Crossing:
        """The overlap above which the fit of a method lies above that of another one.

        The difference of two least-squares lines is the least-squares line of the differences, and
        the crossing its root.
        """
        value = root(self.overlaps, self.logs[method] - self.logs[other])
        drawn = root(self.drawn_overlaps, self.drawn_logs[method] - self.drawn_logs[other])
        lower, upper = (
            np.quantile(drawn, (0.025, 0.975), method="nearest") if len(drawn) else (np.nan, np.nan)
        )
        interval = Interval(float(value), float(lower), float(upper))
        ends = float(self.overlaps.min()), float(self.overlaps.max())
        (slope, intercept), (other_slope, other_intercept) = self.line(method), self.line(other)
        first, last = ((slope - other_slope) * end + intercept - other_intercept for end in ends)
        return Crossing(interval, *ends, (first, last))


def root(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where least-squares lines y(x) become positive, (...); infinite where they do not rise.

    x, y: (..., K).
    """
    centred = x - x.mean(-1, keepdims=True)
    slope = (centred * y).sum(-1) / (centred * centred).sum(-1)
    is_rising = slope > 0
    zero = x.mean(-1) - y.mean(-1) / np.where(is_rising, slope, 1.0)
    return np.where(is_rising, zero, math.inf)
