"""Measure again what looks suspicious, so that few false alarms are raised and small biases are seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from torch import Generator

from resispec.audit.chi_square import ChiSquare
from resispec.audit.estimate import Deviation
from resispec.audit.simulate import Scene, simulate
from resispec.audit.z_score import ZScore
from resispec.verifiers.base import Draws, Verifier

SUSPICIOUS_P = 0.003
"""What is less likely than this is measured again, with fresh random numbers ..."""
AGAIN = 4
"""... and so many times as much of it."""
CERTAIN_P = 1e-9
"""What is even less likely than this is certain enough."""

Found = TypeVar("Found", Deviation, ChiSquare, ZScore)


def settled(measure: Callable[[int], Mapping[str, Found]]) -> Mapping[str, Found]:
    """What `measure(1)` finds or, where one statistic of it looks suspicious, what `measure(AGAIN)` finds.

    measure: takes how many times as much is to be measured, and uses fresh random numbers in every call. The
    first measurement does not count when there is a second. So an exact verifier is hardly ever accused by
    chance, and one that has a small bias is measured for longer.
    """
    found = measure(1)
    if CERTAIN_P <= min(one.p_value for one in found.values()) < SUSPICIOUS_P:
        return measure(AGAIN)
    return found


def simulated(
    verifier: Verifier, scenes: Sequence[Scene], draws: Draws, num_turns: int, generator: Generator
) -> dict[str, ChiSquare]:
    """What `simulate` counts, settled: all scenes by turns, and then those alone that look suspicious."""
    first = simulate(verifier, scenes, draws, num_turns, generator)
    found: dict[str, ChiSquare] = {}
    for scene in scenes:

        def measure(times: int, scene: Scene = scene) -> Mapping[str, ChiSquare]:
            if times == 1:
                return {name: one for name, one in first.items() if name.endswith(f", {scene.name}")}
            return simulate(verifier, [scene], draws, times * num_turns, generator)

        found.update(settled(measure))
    return found
