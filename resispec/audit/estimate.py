"""Audit at a real vocabulary: the emitted law as an average of `law` over sampled sibling tuples.

Averaging the conditional law instead of emitted tokens removes the noise of accepting, rejecting and the
final draw: what is left is the noise of the drafted siblings, and most of that is taken away by
`resispec.audit.control_variates`. Nothing of size (tuples, V) outlives its chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.audit.control_variates import RARE_EVENTS, controls, multiples, reduced
from resispec.audit.row_checks import accepted, check_rows, emitted
from resispec.audit.verdict import Statistic, deviation
from resispec.distributions import sum_rounding
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws, SiblingRule

CHOOSING = 0.4
"""The share of the tuples that choose a set; the others measure it."""


@dataclass(frozen=True)
class Tuples:
    """Size of a sample: `num_tuples` tuples (at least 4) of `num_siblings` siblings.

    max_elements: how many tuples times V are worked on at a time.
    """

    num_siblings: int
    draws: Draws
    num_tuples: int = 2000
    max_elements: int = 1 << 18

    def __post_init__(self) -> None:
        if self.num_siblings < 1 or self.num_tuples < 4:
            raise InvalidInput(
                f"an estimate needs at least 1 sibling and 4 tuples; found {self.num_siblings} siblings, "
                f"{self.num_tuples} tuples"
            )


@dataclass(frozen=True)
class SetMass:
    """Mass of a set S of tokens that other tuples chose because the law seemed to give it more than p does.

    law: mean of law(S), less its controls. target: p(S). error: standard error of `law`, with the allowance
    of `resolution`.
    """

    law: float
    target: float
    error: float


@dataclass(frozen=True)
class Estimate:
    """The emitted law by sampling.

    law, standard_error: (V,) float64, per token, controls not used. excess_set: the set whose mass was
    measured. acceptance: probability that the emitted token is one of the siblings, with its plain standard
    error. num_tuples: 1 for a point mass, where nothing is random. rounding: how far sums over laws may be
    from their true values, in the precision of the laws that were given.
    """

    law: Tensor
    standard_error: Tensor
    excess_set: SetMass
    acceptance: float
    acceptance_error: float
    num_tuples: int
    rounding: float

    @property
    def total_variation(self) -> Statistic:
        """law(S) - p(S): its expectation is 0 under an exact rule, else at most the true total variation."""
        found = self.excess_set
        return deviation(found.law - found.target, found.error)

    def excess(self, ceiling: float) -> Statistic:
        """How far the acceptance lies above the ceiling that holds for exact rules."""
        allowance = resolution(ceiling, self.num_tuples, self.rounding)
        return deviation(self.acceptance - ceiling, math.hypot(self.acceptance_error, allowance))


def resolution(mass: float, num_tuples: int, rounding: float) -> float:
    """The least standard error that n tuples can honestly claim for a mean of values in [0, 1].

    mass: the mean under the null hypothesis. rounding: how far sums of laws are from their true values.
    It is min(sqrt(mass (1 - mass) / n), RARE_EVENTS / n) + rounding. The first term is the largest deviation
    that a mean can have under the null (Bhatia-Davis). The second is needed because a tuple of probability
    below about 10 / n may not have been seen at all, and then the empirical variance is too small: a peaked
    law, all of whose tuples look alike, would be flagged. With n = 1 nothing is random.
    """
    bernoulli = math.sqrt(max(0.0, mass * (1 - mass)) / num_tuples)
    rare = 0.0 if num_tuples == 1 else min(bernoulli, RARE_EVENTS / num_tuples)
    return rare + rounding


def estimate(
    rule: SiblingRule, target_probs: Tensor, draft_probs: Tensor, tuples: Tuples, generator: Generator
) -> Estimate:
    """Estimate the emitted law of a rule at one node, its total variation to the target, and its acceptance.

    target_probs, draft_probs: (V,) float32 or float64, on the generator's device. Chunks are summed in their
    precision, all else in float64. The first tuples choose the set that is measured on the others; of a point
    mass the only tuple does both. Raises InvalidInput when p or q is no law, FloatingPointError when the
    rule's laws are NaN.
    """
    check_rows("target probabilities", target_probs)
    check_rows("draft probabilities", draft_probs)
    node = _Node(rule, target_probs, draft_probs, tuples)
    siblings = node.draw(generator)
    num_choosing = round(CHOOSING * len(siblings))
    sums = _Sums(target_probs)
    choosing = siblings[:num_choosing] if num_choosing else siblings
    chosen = _excess_set(node.chunks(choosing), sums, target_probs)
    if not num_choosing:
        sums = _Sums(target_probs)
    masses = _masses(node.chunks(siblings[num_choosing:]), sums, chosen)
    law, spread = sums.law()
    if not bool(law.isfinite().all()):
        raise FloatingPointError(
            "the rule's law holds NaN or infinite values; wrap it in CheckedRule to learn where"
        )
    rounding, target = sum_rounding(target_probs), float(target_probs[chosen].sum(dtype=torch.float64))
    error = math.hypot(_standard_error(masses), resolution(target, len(masses), rounding))
    excess_set, accepted = SetMass(float(masses.mean()), target, error), torch.cat(sums.accepted)
    acceptance = float(accepted.mean()), _standard_error(accepted)
    return Estimate(law, spread, excess_set, *acceptance, len(accepted), rounding)


def pool(deviations: Sequence[Statistic]) -> Statistic:
    """The mean of independent deviations, so that many weak signs become one: errors add in squares.

    Raises InvalidInput when there is none.
    """
    count = len(deviations)
    if not count:
        raise InvalidInput("no deviations to average; at least 1 is needed")
    value = sum(one.value for one in deviations) / count
    return deviation(value, math.sqrt(sum(one.error**2 for one in deviations)) / count)


Chunks = Iterable[tuple[Tensor, Tensor, Tensor]]
"""Of C tuples each: emitted laws (C, V), acceptances (C,) and controls (C, K, V)."""


@dataclass(frozen=True)
class _Node:
    """A rule and the laws p, q (V,) at which it is estimated."""

    rule: SiblingRule
    target_probs: Tensor
    draft_probs: Tensor
    tuples: Tuples

    def draw(self, generator: Generator) -> Tensor:
        """(n, B) sibling tuples, drawn as in decoding; a single one if nothing is random."""
        draws, size = self.tuples.draws, self.tuples.num_siblings
        count = self.tuples.num_tuples if draws.are_random else 1
        if draws.are_independent:
            return draws.draw(self.draft_probs, count * size, generator).view(count, -1)
        parts = [min(self._rows, count - start) for start in range(0, count, self._rows)]
        return torch.cat([draws.draw(self.draft_probs.expand(n, -1), size, generator) for n in parts])

    def chunks(self, siblings: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """See `Chunks`, of tuples (n, B)."""
        for tokens in siblings.split(self._rows):
            p, q = (probs.expand(len(tokens), -1) for probs in (self.target_probs, self.draft_probs))
            law = self.rule.law(p, q, tokens, self.tuples.draws)
            known = controls(p, q, tokens, self.tuples.draws)
            yield emitted(law, tokens), accepted(law, tokens).double(), known

    @property
    def _rows(self) -> int:
        """Tuples in a chunk."""
        return max(1, self.tuples.max_elements // len(self.target_probs))


class _Sums:
    """Sums over tuples of the emitted law and of its square, (V,) float64, and all acceptances."""

    def __init__(self, target_probs: Tensor) -> None:
        self.law_sum = torch.zeros_like(target_probs, dtype=torch.float64)
        self.square_sum = self.law_sum.clone()
        self.accepted: list[Tensor] = []

    def add(self, laws: Tensor, accepted: Tensor) -> None:
        """Count one chunk."""
        self.law_sum += laws.sum(0)
        self.square_sum += laws.square().sum(0)
        self.accepted.append(accepted)

    def law(self) -> tuple[Tensor, Tensor]:
        """The mean law and its standard error, (V,) each."""
        count = sum(map(len, self.accepted))
        mean = self.law_sum / count
        variance = (self.square_sum / count - mean * mean).clamp_min(0)
        return mean, (variance / max(1, count - 1)).sqrt()


def _excess_set(chunks: Chunks, sums: _Sums, target_probs: Tensor) -> Tensor:
    """The tokens (V,) bool to which the mean law, less its controls, gives more than p does."""
    level = products = torch.zeros((), dtype=torch.float64, device=target_probs.device)
    for laws, hits, known in chunks:
        sums.add(laws, hits)
        level = level + known.sum(0).double()  # (K, V)
        # (K, K + 1), of controls with controls, with the law
        products = products + (known @ torch.cat((known, laws[:, None]), 1).mT).sum(0).double()
    count, mean = sum(map(len, sums.accepted)), sums.law()[0]
    known_mean = level / count
    spread = products / count - known_mean @ torch.cat((known_mean, mean[None])).T
    return mean - multiples(spread[:, :-1], spread[:, -1], count) @ known_mean > target_probs


def _masses(chunks: Chunks, sums: _Sums, chosen: Tensor) -> Tensor:
    """The mass (n,) of the set `chosen` (V,) bool in every tuple, less its controls."""
    masses = []
    for laws, hits, known in chunks:
        sums.add(laws, hits)
        inside = chosen.to(laws.dtype)
        masses.append(torch.cat((known @ inside, (laws @ inside)[:, None]), 1).double())
    every = torch.cat(masses)
    return reduced(every[:, -1], every[:, :-1])


def _standard_error(values: Tensor) -> float:
    """Standard error of the mean of (n,) values; 0 for a single one."""
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0
