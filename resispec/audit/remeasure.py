"""Measure again what looks suspicious, so that few false alarms are raised and small biases are seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Generator

from resispec.audit.simulate import Scene, simulate
from resispec.audit.verdict import AGAINST_OUTCOMES, CERTAIN_P, LEAST_P, SUSPICIOUS_P, Statistic, Statistics
from resispec.verifiers.base import Draws, Verifier

AGAIN = 4
"""Sample-size factor of the second measurement."""
LONGER = 16
"""Sample-size factor of the tokens where verdicts do not follow `outcomes`."""


def remeasured(measure: Callable[[int], Statistics]) -> Statistics:
    """The result of `measure(1)` or, where one statistic of it looks suspicious, that of `measure(AGAIN)`.

    measure: takes how many times as much is to be measured, and uses fresh random numbers in every call. The
    first measurement does not count when there is a second. So an exact verifier is hardly ever accused by
    chance, and one that has a small bias is measured for longer.
    """
    statistics = measure(1)
    is_suspicious = CERTAIN_P <= min(one.p_value for one in statistics.values()) < SUSPICIOUS_P
    return measure(AGAIN) if is_suspicious else statistics


def simulated(
    verifier: Verifier, scenes: Sequence[Scene], draws: Draws, num_turns: int, generator: Generator
) -> dict[str, dict[str, Statistic]]:
    """The counts of `simulate`, remeasured: all scenes by turns, and then those alone that look suspicious.

    Where verdicts do not follow `outcomes`, the tokens may still be right: they are simulated for longer, to
    tell an inconsistent verifier from a biased one.
    """
    results = simulate(verifier, scenes, draws, num_turns, generator)
    for scene in scenes:
        first = results[scene.name]

        def measure(times: int, scene: Scene = scene, first: Statistics = first) -> Statistics:
            if times == 1:
                return first
            return simulate(verifier, [scene], draws, times * num_turns, generator)[scene.name]

        counts = dict(remeasured(measure))
        doubtful = [name for name, count in counts.items() if count.p_value < LEAST_P]
        if doubtful and all(name in AGAINST_OUTCOMES for name in doubtful):
            longer = measure(LONGER)
            counts |= {name: count for name, count in longer.items() if name not in AGAINST_OUTCOMES}
        results[scene.name] = counts
    return results
