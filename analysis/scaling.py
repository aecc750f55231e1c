"""Expected accepted length, marginal gain and efficiency against the number of candidates, and the ceiling of all three."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from analysis.bootstrap import Interval
from analysis.law_report import ratio, resampled
from resispec.audit.path_bound import path_bound
from resispec.law_rows import ScalingRow

QUANTITIES = ("expected_accepted_length", "marginal_gain", "efficiency")
ABSENT = Interval(np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Point:
    """One N. The first N of a curve has no marginal gain and no efficiency (NaN)."""

    num_candidates: int
    num_nodes: int
    expected_accepted_length: Interval
    marginal_gain: Interval
    efficiency: Interval


Curve: TypeAlias = tuple[Point, ...]


def curve(rows: Sequence[ScalingRow], reading: str) -> Curve:
    """The measured curve of one cell, bootstrapped over prompts; gains are paired."""
    emitted, contexts = _emitted(rows, reading), np.array([row.num_contexts for row in rows], np.float64)
    places = _places(rows[0], reading)

    def gain(index: int, candidates: int) -> Interval:
        return ratio((emitted[:, index] - emitted[:, index - 1]) / candidates, contexts)

    return _curve(rows[0], places, [ratio(emitted[:, index], contexts) for index in range(len(places))], gain)


def ceiling_curve(rows: Sequence[ScalingRow], reading: str) -> Curve:
    """The ceiling 1 + sum_l A_l of every N. Its gains are differences of bounds and have no interval."""
    rollouts = in_halves([row.rollout_log_ratios for row in rows])
    places, bounds = _places(rows[0], reading), []
    for place in places:
        trees = in_halves([row.tree_log_ratios[place] for row in rows])
        bounds.append(bound(rollouts, trees))

    def gain(index: int, candidates: int) -> Interval:
        return Interval((bounds[index].value - bounds[index - 1].value) / candidates, np.nan, np.nan)

    return _curve(rows[0], places, bounds, gain)


# How a curve of lengths (..., K) is compared with another: what each view leaves out of account is in table5's note.
VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "growth": lambda lengths: lengths[..., 1:] / lengths[..., :1],
    "gain shares": lambda lengths: np.diff(lengths, axis=-1) / (lengths[..., -1:] - lengths[..., :1]),
    "level": lambda lengths: lengths,
}


@dataclass(frozen=True)
class Difference:
    """Root mean square difference from a published curve, measured and per resample of the prompts (R,)."""

    value: float
    resampled: np.ndarray


def differences(rows: Sequence[ScalingRow], reading: str, published: np.ndarray) -> dict[str, Difference]:
    """Compare one cell with published expected accepted lengths (K,), one for every N, in all VIEWS."""
    emitted, contexts = _emitted(rows, reading), np.array([row.num_contexts for row in rows], np.float64)
    counts = resampled(len(rows))
    lengths = emitted.sum(0) / contexts.sum()
    spread = (counts @ emitted) / (counts @ contexts)[:, None]
    return {
        name: Difference(float(_rms(view(lengths) - view(published))), _rms(view(spread) - view(published)))
        for name, view in VIEWS.items()
    }


def _rms(deviations: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(deviations**2, axis=-1))


def _places(row: ScalingRow, reading: str) -> list[int]:
    """Where a row holds the shapes of a reading."""
    return [place for place, name in enumerate(row.reading) if name == reading]


def _emitted(rows: Sequence[ScalingRow], reading: str) -> np.ndarray:
    """(prompts, K) float64."""
    places = _places(rows[0], reading)
    return np.array([[row.emitted[place] for place in places] for row in rows], np.float64)


def _curve(
    row: ScalingRow, places: list[int], lengths: list[Interval], gain: Callable[[int, int], Interval]
) -> Curve:
    """gain: (index, candidates by which to divide) -> the gain over the point before."""
    points: list[Point] = []
    for index, place in enumerate(places):
        more = row.num_candidates[place] - points[-1].num_candidates if points else 0
        gains = (gain(index, 1), gain(index, more)) if points else (ABSENT, ABSENT)
        points.append(Point(row.num_candidates[place], row.num_nodes[place], lengths[index], *gains))
    return tuple(points)


def in_halves(by_prompt: Sequence[Sequence[Sequence[float]]]) -> Tensor:
    """(S, D-1) samples in the order in which `path_bound` splits them into halves, so that no prompt is in both.

    by_prompt: [prompt][sample][level]. Prompts take turns; what the longer half has more is left out.
    """
    halves = [[sample for samples in by_prompt[start::2] for sample in samples] for start in (0, 1)]
    pairs = [sample for pair in zip(*halves, strict=False) for sample in pair]
    return torch.tensor(pairs, dtype=torch.float64).reshape(len(pairs), len(by_prompt[0][0]))


def bound(rollouts: Tensor, trees: Tensor) -> Interval:
    """1 + the bound of the accepted tokens; NaN when there are too few samples for one."""
    if min(len(rollouts), len(trees)) < 4:
        return ABSENT
    found = path_bound(rollouts, trees)
    margin = 1.96 * found.accepted_error
    return Interval(1 + found.accepted, 1 + found.accepted - margin, 1 + found.accepted + margin)
