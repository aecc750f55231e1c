"""Seconds a step of any configuration, from a few that were timed on a device.

A part of a step is a sum of terms, each a number that follows from the configuration and the cached length,
times seconds that are fitted to what was timed. The terms are what decoding does: one forward of the target
over all nodes, one of the draft over every level that has children, a walk of the verifier, and the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from experiments.costs.configuration import Configuration
from resispec.errors import InvalidInput
from resispec.trees.search import Times

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Positions of a forward of the target between which seconds are interpolated."""
WIDTHS = SIZES[:6]
"""Widths for the draft, which forwards a level at a time. Beyond the last one the last line goes on."""
LEVEL_WIDTH = 16
"""Nodes of the draft forward that stands for a level where a single number is needed."""

Terms = dict[str, float]


@dataclass(frozen=True)
class Timed:
    """Times of a step of one configuration.

    length: positions that were cached before the step, in the mean. step_s: seconds of a whole step.
    draft_s, target_s, verify_s: seconds of its parts.
    """

    configuration: Configuration
    length: float
    step_s: float
    draft_s: float
    target_s: float
    verify_s: float

    @property
    def rest_s(self) -> float:
        """Seconds that are left of the step.

        It is below 0 where the clocks of the parts kept a device from working ahead, see `probes`.
        """
        return self.step_s - self.draft_s - self.target_s - self.verify_s

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Timed:
        """From `facts`. Raises InvalidInput, LookupError, TypeError or ValueError for what is none."""
        names = ("length", "step_s", "draft_s", "target_s", "verify_s")
        found = cls(Configuration.of(facts), **{name: float(facts[name]) for name in names})
        if not 0 < found.step_s < float("inf"):
            raise ValueError(f"step_s is {found.step_s}; allowed: positive seconds")
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """Values that JSON can hold; seconds with five digits, more than any clock is good for."""
        names = ("step_s", "draft_s", "target_s", "verify_s")
        seconds = {name: float(f"{getattr(self, name):.5g}") for name in names}
        return self.configuration.facts | {"length": round(self.length, 1)} | seconds


def forward_terms(model: str, size: int, length: float) -> Terms:
    """One forward of "target" or "draft" over `size` positions behind `length` cached ones."""
    knots = SIZES if model == "target" else WIDTHS
    place = min(bisect_right(knots, size), len(knots) - 1)
    low, high = knots[place - 1], knots[place]
    share = (size - low) / (high - low)
    return {
        f"{model} {low}": 1 - share,
        f"{model} {high}": share,
        f"{model} cached": length,
        f"{model} cached by positions": length * size,
    }


def target_terms(configuration: Configuration, length: float) -> Terms:
    """The forward of the target, its head and its laws included."""
    return forward_terms("target", configuration.topology.num_nodes, length)


def draft_terms(configuration: Configuration, length: float) -> Terms:
    """Forwards over the nodes that have children, level by level, and their draws; a root needs none."""
    topology, terms = configuration.topology, Counter[str]()
    if topology.num_nodes == 1:
        return {}
    for level in topology.levels[:-1]:
        counts = [len(topology.children[node]) for node in level if topology.children[node]]
        terms.update(forward_terms("draft", len(counts), length))
        drawn, laws = f"draw {configuration.draws}", float(len(counts))
        terms.update({drawn: 1.0, f"{drawn} laws": laws, f"{drawn} siblings": laws * max(counts)})
    terms["draft begins"] = 1.0  # the first forward also has the token that was accepted as a leaf
    return dict(terms)


def verify_terms(configuration: Configuration, _length: float) -> Terms:
    """A walk: so much a level, a sibling of those on the widest path, and a node.

    The root's siblings are always looked at, those of deeper levels less and less often.
    """
    topology = configuration.topology
    if topology.num_nodes == 1:
        return {"walk of a root": 1.0}
    name = f"walk {configuration.draws} {configuration.verifier}"
    widest = [max(len(topology.children[node]) for node in level) for level in topology.levels]
    counts = {
        "levels": topology.num_levels - 1,
        "siblings of the root": widest[0],
        "deeper siblings": sum(widest[1:]),
        "nodes": topology.num_nodes - 1,
    }
    return {name: 1.0} | {f"{name} {what}": float(count) for what, count in counts.items()}


def rest_terms(configuration: Configuration, _length: float) -> Terms:
    """Commit, and the loop itself."""
    below = configuration.topology.num_nodes - 1
    return {"rest": 1.0, "rest of speculation": float(below > 0), "rest by nodes": float(below)}


PARTS = {"draft": draft_terms, "target": target_terms, "verify": verify_terms, "rest": rest_terms}


@dataclass(frozen=True)
class CostModel:
    """Predicts the seconds of a step. seconds: of every term, per unit of it."""

    seconds: Mapping[str, float]

    @classmethod
    def fitted(cls, timed: Sequence[Timed]) -> CostModel:
        """The model whose steps differ least from those that were timed, as shares of these.

        No term takes less than no time, but for those of the rest, see `Timed.rest_s`.
        Raises InvalidInput when nothing was timed.
        """
        if not timed:
            raise InvalidInput("no step was timed; a cost model needs some")
        scales = np.array([one.step_s for one in timed])
        found: dict[str, float] = {}
        for part, terms_of in PARTS.items():
            terms = [terms_of(one.configuration, one.length) for one in timed]
            names = list(dict.fromkeys(name for own in terms for name, value in own.items() if value))
            matrix = np.array([[own.get(name, 0.0) for name in names] for own in terms])
            units = np.abs(matrix).max(0)  # lengths and counts are far larger than shares
            wanted = np.array([getattr(one, f"{part}_s") for one in timed]) / scales
            shares = matrix / units / scales[:, None]
            fit = nnls(shares, wanted) if part != "rest" else np.linalg.lstsq(shares, wanted, rcond=None)
            found |= dict(zip(names, (fit[0] / units).tolist(), strict=True))
        return cls(found)

    def part_s(self, part: str, configuration: Configuration, length: float) -> float:
        """Seconds of a part of a step, by its name in PARTS. length: cached positions before the step.

        Raises InvalidInput for draws or a verifier of which nothing was timed.
        """
        return self._sum(PARTS[part](configuration, length))

    def step_s(self, configuration: Configuration, length: float) -> float:
        """Seconds of a whole step, see `part_s`."""
        return sum(self.part_s(part, configuration, length) for part in PARTS)

    def tokens_per_s(self, configuration: Configuration, tokens: float, length: float) -> float:
        """Tokens a second of a configuration that emits so many tokens a step in the mean."""
        return tokens / self.step_s(configuration, length)

    def times(self, sizes: Iterable[int], length: float) -> Times:
        """Seconds of forwards alone: of the target over each size and over 1, of the draft over a level."""
        forwards = {size: self._sum(forward_terms("target", size, length)) for size in sorted({1, *sizes})}
        return Times(forwards, self._sum(forward_terms("draft", LEVEL_WIDTH, length)))

    def _sum(self, terms: Terms) -> float:
        unknown = [name for name, value in terms.items() if value and name not in self.seconds]
        if unknown:
            known = ", ".join(name for name in self.seconds if name.startswith(unknown[0].split()[0]))
            raise InvalidInput(f"no cost of {unknown[0]!r} was measured; allowed: {known or 'none'}")
        return sum(value * self.seconds[name] for name, value in terms.items() if value)
