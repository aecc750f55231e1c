"""Expected accepted length, marginal gain and efficiency by the number of candidates, and their ceilings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd

from analysis.stats import ABSENT, Interval, divide, ratio, resample

QUANTITIES = ("expected_accepted_length", "marginal_gain", "efficiency")
FIELDS = (
    *("num_prefixes", "arrangement", "num_candidates", "num_nodes"),
    *("emitted", "tree_log_ratios", "rollout_log_ratios"),
)
"""Lists have one entry a topology; arrangement, candidates and nodes are the same in every row of a cell."""


@dataclass(frozen=True)
class Point:
    """One N. The first N of a curve has no marginal gain and no efficiency (NaN)."""

    num_candidates: int
    num_nodes: int
    expected_accepted_length: Interval
    marginal_gain: Interval
    efficiency: Interval


Curve: TypeAlias = tuple[Point, ...]


def curve(rows: pd.DataFrame, arrangement: str) -> Curve:
    """The measured curve of one cell, bootstrapped over prompts; gains are paired."""
    emitted, places = _emitted(rows, arrangement), _places(rows, arrangement)

    def gain(index: int, candidates: int) -> Interval:
        return ratio(emitted[:, index] - emitted[:, index - 1], rows.num_prefixes * candidates)

    lengths = [ratio(emitted[:, index], rows.num_prefixes) for index in range(len(places))]
    return _curve(rows, places, lengths, gain)


def ceiling_curve(rows: pd.DataFrame, arrangement: str) -> Curve:
    """The ceiling of every N, 1 + sum over levels of A_l. Gains, differences of bounds, have no interval."""
    rollouts, places = in_halves(rows.rollout_log_ratios.tolist()), _places(rows, arrangement)
    bounds = [
        bound(rollouts, in_halves([trees[place] for trees in rows.tree_log_ratios])) for place in places
    ]

    def gain(index: int, candidates: int) -> Interval:
        return Interval(float(divide(bounds[index].value - bounds[index - 1].value, candidates)))

    return _curve(rows, places, bounds, gain)


# How a curve of lengths (..., K) is compared with another; table5's note says what each view leaves out.
VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "growth": lambda lengths: divide(lengths[..., 1:], lengths[..., :1]),
    "gain shares": lambda lengths: divide(np.diff(lengths, axis=-1), lengths[..., -1:] - lengths[..., :1]),
    "level": lambda lengths: lengths,
}


def differences(
    rows: pd.DataFrame, arrangement: str, paper: np.ndarray
) -> dict[str, tuple[float, np.ndarray]]:
    """Root mean square differences of a cell's curve from the paper's (K,), in all VIEWS.

    Each is measured, and per resample of the prompts (R,).
    """
    emitted, prefixes = _emitted(rows, arrangement), rows.num_prefixes.to_numpy(np.float64)
    counts = resample(len(rows))
    lengths = emitted.sum(0) / prefixes.sum()
    drawn = divide(counts @ emitted, (counts @ prefixes)[:, None])
    return {
        name: (float(_rms(view(lengths) - view(paper))), _rms(view(drawn) - view(paper)))
        for name, view in VIEWS.items()
    }


def _rms(deviations: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(deviations**2, axis=-1))


def _places(rows: pd.DataFrame, arrangement: str) -> list[int]:
    """Where the rows of a cell hold the topologies of an arrangement."""
    return [place for place, name in enumerate(rows.arrangement.iloc[0]) if name == arrangement]


def _emitted(rows: pd.DataFrame, arrangement: str) -> np.ndarray:
    """(prompts, K) float64."""
    places = _places(rows, arrangement)
    return np.array([[emitted[place] for place in places] for emitted in rows.emitted], np.float64)


def _curve(
    rows: pd.DataFrame, places: list[int], lengths: list[Interval], gain: Callable[[int, int], Interval]
) -> Curve:
    """gain: (index, candidates by which to divide) -> the gain over the point before."""
    counts, sizes = rows.num_candidates.iloc[0], rows.num_nodes.iloc[0]
    points: list[Point] = []
    for index, place in enumerate(places):
        more = counts[place] - points[-1].num_candidates if points else 0
        gains = (gain(index, 1), gain(index, more)) if points else (ABSENT, ABSENT)
        points.append(Point(counts[place], sizes[place], lengths[index], *gains))
    return tuple(points)


def in_halves(by_prompt: Iterable[Sequence[Sequence[float]]]) -> np.ndarray:
    """(S, D-1) samples in the order in which `path_bound` halves them, so that no prompt is in both halves.

    by_prompt: [prompt][sample][level]. Prompts take turns; what the longer half has more is left out.
    """
    prompts = list(by_prompt)
    halves = [[sample for samples in prompts[start::2] for sample in samples] for start in (0, 1)]
    pairs = [sample for pair in zip(*halves, strict=False) for sample in pair]
    return np.array(pairs, np.float64).reshape(len(pairs), len(prompts[0][0]))


def bound(rollouts: np.ndarray, trees: np.ndarray) -> Interval:
    """1 + the bound of the accepted tokens; NaN when there are too few samples for one."""
    if min(len(rollouts), len(trees)) < 4:
        return ABSENT
    import torch  # for ceilings alone

    from resispec.audit.ceiling import path_bound

    found = path_bound(torch.from_numpy(rollouts), torch.from_numpy(trees))
    margin = 1.96 * found.accepted_error
    return Interval(1 + found.accepted, 1 + found.accepted - margin, 1 + found.accepted + margin)
