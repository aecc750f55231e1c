"""Do the tokens that `verify` emits follow the target's law, and its verdicts that of `outcomes`?

Enumeration and estimation judge the law that a verifier says it draws from. Decoding calls
`verify`, which may draw from another law: a bonus token at another temperature, one random number
used twice, state that is kept from one call to the next. So small trees are drafted, verified and
counted many times, on several scenes in turn, with one generator, as in a decoder.
`walk_statistics` counts.
"""

from collections.abc import Sequence
from functools import cache, partial

import torch
from torch import Generator, Tensor

from resispec.audit.verdict import (
    AGAINST_OUTCOMES,
    CERTAIN_P,
    LEAST_P,
    SUSPICIOUS_P,
    Statistic,
    Statistics,
    Walked,
    remeasured,
)
from resispec.audit.walk_statistics import Scene, Walks, outcomes_in, statistics_of
from resispec.core import Verdict
from resispec.verifiers.base import DrawsKind, Verifier, check_verdict

DOUBTFUL_P = 0.05
"""p-value at which a suspicious statistic is cleared by as many fresh walks as raised suspicion.

An error that raises it nine times in ten is cleared once in a hundred.
"""
NUM_TURNS = 100
"""The turns through the scenes in an audit."""
MOVED = 0.03
"""Mass found if `verify` moves it to or from a set of tokens at one in ten of a walk's tokens.

It is found nine times in ten after NUM_TURNS turns, as `make faults` measures it, with at most 64
tokens.
"""
MOVED_ELSEWHERE = 0.05
"""Mass that is found like MOVED if moved at every token, at other temperatures and filters."""


class _Simulation:
    """Trees of all scenes, drafted and verified in turn, on the CPU."""

    def __init__(
        self, verifier: Verifier, scenes: Sequence[Scene], draws: DrawsKind, generator: Generator
    ) -> None:
        self.verifier, self.scenes, self.draws, self.generator = verifier, scenes, draws, generator
        self.samples: list[list[tuple[Tensor, Verdict]]] = [[] for _ in scenes]
        # Kept, since a slow verifier's outcomes of the same trees are asked for at every look.
        self.outcomes = [cache(partial(outcomes_in, verifier, scene, draws)) for scene in scenes]

    def walk(self, num_turns: int) -> None:
        """Add so many turns through the scenes."""
        for _ in range(num_turns):
            for scene, pairs in zip(self.scenes, self.samples, strict=True):
                for _ in range(scene.trees_per_turn):
                    tokens = scene.drafted(self.draws, self.generator)
                    given = scene.given(tokens, self.draws)
                    verdict = self.verifier.verify(*given, self.generator)
                    check_verdict(self.verifier, verdict, given[0], scene.target_rows.shape[-1])
                    pairs.append((tokens, verdict))

    def statistics(self) -> dict[str, dict[str, Statistic]]:
        """The statistics of `statistics_of` by the scene's name."""
        results = {}
        for scene, pairs, outcomes in zip(self.scenes, self.samples, self.outcomes, strict=True):
            trees, verdicts = zip(*pairs, strict=True)
            walks = Walks(scene, self.draws, torch.stack(trees), verdicts)
            results[scene.name] = statistics_of(outcomes, walks)
        return results


def simulate(
    verifier: Verifier,
    scenes: Sequence[Scene],
    draws: DrawsKind,
    num_turns: int,
    generator: Generator,
) -> dict[str, dict[str, Statistic]]:
    """Draft and verify trees of all scenes, in turn, and compare counts with laws, on the CPU.

    Returns the statistics of `statistics_of` by the scene's name.
    """
    simulation = _Simulation(verifier, scenes, draws, generator)
    simulation.walk(num_turns)
    return simulation.statistics()


def simulated(
    verifier: Verifier,
    scenes: Sequence[Scene],
    draws: DrawsKind,
    num_turns: int,
    generator: Generator,
) -> dict[str, dict[str, Statistic]]:
    """The counts of `simulate` for all scenes in turn, and anew for each that looks suspicious.

    If a tenth of the turns leaves no doubt about the tokens, it is enough. A scene is walked again
    as long as at first, and four times as long unless that clears what looked suspicious. Where
    verdicts do not follow `outcomes`, the tokens may still be right: they are simulated for longer,
    to tell an inconsistent verifier from a biased one.
    """
    few_turns = -(-num_turns // 10)
    simulation = _Simulation(verifier, scenes, draws, generator)
    simulation.walk(few_turns)
    results = simulation.statistics()
    least_p = min(
        (
            count.p_value
            for counts in results.values()
            for name, count in counts.items()
            if name not in AGAINST_OUTCOMES
        ),
        default=1.0,
    )
    if least_p < CERTAIN_P:
        num_turns = few_turns
    else:
        simulation.walk(num_turns - few_turns)
        results = simulation.statistics()
    for scene in scenes:
        first = results[scene.name]

        def measure(times: int, scene: Scene = scene, first: Statistics = first) -> Statistics:
            if times == 1:
                return first
            return _again(first, _Simulation(verifier, [scene], draws, generator), times, num_turns)

        counts = dict(remeasured(measure))
        outliers = [name for name, count in counts.items() if count.p_value < LEAST_P]
        if outliers and all(name in AGAINST_OUTCOMES for name in outliers):
            longer = simulate(verifier, [scene], draws, 16 * num_turns, generator)[scene.name]
            counts |= {
                name: count for name, count in longer.items() if name not in AGAINST_OUTCOMES
            }
        results[scene.name] = counts
    return results


def _again(first: Statistics, fresh: _Simulation, times: int, num_turns: int) -> Statistics:
    """The counts of fresh walks through one scene: num_turns, or `times` as many if in doubt.

    There is no doubt if no statistic that looked suspicious at first is below DOUBTFUL_P.
    """
    fresh.walk(num_turns)
    [counts] = fresh.statistics().values()
    suspicious = [name for name, count in first.items() if count.p_value < SUSPICIOUS_P]
    if all(counts[name].p_value >= DOUBTFUL_P for name in suspicious if name in counts):
        return counts
    fresh.walk((times - 1) * num_turns)
    [counts] = fresh.statistics().values()
    return counts


def walked(scenes: Sequence[Scene], num_turns: int) -> Walked | None:
    """The ground that `simulate` covers, for people; None without scenes.

    The errors that show are as small as the square root of the number of walks is large.
    """
    if not scenes:
        return None
    share = (NUM_TURNS / num_turns) ** 0.5
    return Walked(
        siblings=max(scene.num_siblings for scene in scenes),
        settings=tuple(dict.fromkeys(scene.setting for scene in scenes)),
        moved=MOVED * share,
        moved_elsewhere=MOVED_ELSEWHERE * share,
    )
