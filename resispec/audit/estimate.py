"""Audit at a real vocabulary: the emitted law as an average of `law` over sampled sibling tuples.

Averaging the conditional law instead of emitted tokens removes the noise of accepting, rejecting and the
final draw: what is left is the noise of the drafted siblings. Nothing of size (tuples, V) outlives its chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.audit.laws import accepted, check_rows, emitted
from resispec.distributions import sum_rounding
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws, SiblingRule

RARE_EVENTS = 4.0
"""Standard errors count at least this many events over the number of tuples: see `resolution`."""


@dataclass(frozen=True)
class Tuples:
    """What to draw: `num_tuples` tuples (at least 4) of `num_siblings` siblings.

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
    """Mass of a set S that one half of the tuples chose, S = {x : law(x) > p(x)}, measured on the other half.

    law: mean of law(S). target: p(S). error: standard error of `law`, with the allowance of `resolution`.
    """

    law: float
    target: float
    error: float


@dataclass(frozen=True)
class Estimate:
    """The emitted law by sampling.

    law, standard_error: (V,) float64, per token. halves: the cross-fitted sets. acceptance: probability that
    the emitted token is one of the siblings, with its plain standard error. num_tuples: 1 for a point mass,
    where nothing is random. rounding: how far sums over laws may be from their true values, in the precision
    of the laws that were given.
    """

    law: Tensor
    standard_error: Tensor
    halves: tuple[SetMass, SetMass]
    acceptance: float
    acceptance_error: float
    num_tuples: int
    rounding: float

    @property
    def total_variation(self) -> float:
        """Cross-fitted: the mean of the halves' law(S) - p(S).

        Its expectation is 0 under an exact rule, else at most the true value.
        """
        return sum(half.law - half.target for half in self.halves) / 2

    @property
    def total_variation_error(self) -> float:
        """Mean of the halves' errors: it bounds the error of their mean, however dependent they are."""
        return sum(half.error for half in self.halves) / 2

    @property
    def z(self) -> float:
        """Total variation in standard errors.

        An exact rule exceeds 4 with probability 6.3e-5 at most (one side, two halves).
        """
        return self.total_variation / self.total_variation_error

    def excess(self, ceiling: float) -> float:
        """How many standard errors the acceptance lies above the ceiling that holds for exact rules."""
        allowance = resolution(ceiling, self.num_tuples, self.rounding)
        return (self.acceptance - ceiling) / math.hypot(self.acceptance_error, allowance)


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

    target_probs, draft_probs: (V,) float32 or float64, on the generator's device. Sums are taken in float64.
    The first half of the tuples is passed over twice, because its own scalars need the set that the second
    half chooses. Raises InvalidInput when p or q is no law, FloatingPointError when the rule's laws are NaN.
    """
    check_rows("target probabilities", target_probs)
    check_rows("draft probabilities", draft_probs)
    run = _Pass(rule, target_probs, draft_probs, tuples)
    if tuples.draws.are_random:
        half = tuples.num_tuples // 2
        first, second = (run.draw(count, generator) for count in (half, tuples.num_tuples - half))
    else:
        first = second = run.draw(1, generator)
    none = torch.zeros_like(target_probs, dtype=torch.bool)
    one = run.sums(first, none)
    two = run.sums(second, one.mean > target_probs)
    again = run.sums(first, two.mean > target_probs)
    halves = (run.mass(two, one.mean > target_probs), run.mass(again, two.mean > target_probs))
    both = [one, two] if tuples.draws.are_random else [one]
    count = sum(part.count for part in both)
    mean = sum((part.mean * part.count for part in both), torch.zeros_like(one.mean)) / count
    square = sum((part.square * part.count for part in both), torch.zeros_like(one.mean)) / count
    spread = ((square - mean * mean).clamp_min(0) / max(1, count - 1)).sqrt()
    hits = torch.cat([part.accepted for part in both])
    if not bool(mean.isfinite().all()):
        raise FloatingPointError(
            "the rule's law holds NaN or infinite values; wrap it in CheckedRule to learn where"
        )
    acceptance = float(hits.mean()), _standard_error(hits)
    return Estimate(mean, spread, halves, *acceptance, count, sum_rounding(target_probs))


@dataclass(frozen=True)
class Pooled:
    """The mean of the total variations of several independent estimates, its standard error and z."""

    total_variation: float
    error: float

    @property
    def z(self) -> float:
        """Total variation in standard errors."""
        return self.total_variation / self.error


def pool(estimates: Sequence[Estimate]) -> Pooled:
    """Average over pairs of laws, so that many weak signs become one: errors add in squares.

    Under an exact rule the mean is 0. Raises InvalidInput when there is no estimate.
    """
    count = len(estimates)
    if not count:
        raise InvalidInput("no estimates to average; at least 1 is needed")
    value = sum(item.total_variation for item in estimates) / count
    return Pooled(value, math.sqrt(sum(item.total_variation_error**2 for item in estimates)) / count)


@dataclass(frozen=True)
class _Sums:
    """Sums over one half of the tuples, float64.

    mean, square: (V,), of the law and of its square. mass, accepted: (n,), every tuple's mass of a set and
    acceptance.
    """

    mean: Tensor
    square: Tensor
    mass: Tensor
    accepted: Tensor

    @property
    def count(self) -> int:
        return len(self.mass)


@dataclass(frozen=True)
class _Pass:
    """One rule at one node."""

    rule: SiblingRule
    target_probs: Tensor
    draft_probs: Tensor
    tuples: Tuples

    @property
    def rows(self) -> int:
        """Tuples in a chunk."""
        return max(1, self.tuples.max_elements // len(self.target_probs))

    def draw(self, count: int, generator: Generator) -> Tensor:
        """(count, B) sibling tuples, drawn as in decoding."""
        draws, size = self.tuples.draws, self.tuples.num_siblings
        if draws.are_independent:
            return draws.draw(self.draft_probs, count * size, generator).view(count, -1)
        rows = [min(self.rows, count - start) for start in range(0, count, self.rows)]
        return torch.cat([draws.draw(self.draft_probs.expand(n, -1), size, generator) for n in rows])

    def laws(self, siblings: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunks of emitted laws (C, V) and acceptances (C,)."""
        for tokens in siblings.split(self.rows):
            shape = (len(tokens), len(self.target_probs))
            law = self.rule.law(
                self.target_probs.expand(shape), self.draft_probs.expand(shape), tokens, self.tuples.draws
            )
            yield emitted(law, tokens), accepted(law, tokens).double()

    def sums(self, siblings: Tensor, chosen: Tensor) -> _Sums:
        """Running sums over all tuples, with the mass of the set `chosen` (V,) bool in every one of them."""
        mean = torch.zeros_like(self.target_probs, dtype=torch.float64)
        square, mass, hits = mean.clone(), [], []
        index = chosen.nonzero()[:, 0]
        for laws, hit in self.laws(siblings):
            mean += laws.sum(0, dtype=torch.float64)
            square += laws.square().sum(0, dtype=torch.float64)
            mass.append(laws.index_select(1, index).sum(1, dtype=torch.float64))
            hits.append(hit)
        return _Sums(mean / len(siblings), square / len(siblings), torch.cat(mass), torch.cat(hits))

    def mass(self, sums: _Sums, chosen: Tensor) -> SetMass:
        """The mass of a set that other tuples chose."""
        target = float(self.target_probs[chosen].sum(dtype=torch.float64))
        allowance = resolution(target, sums.count, sum_rounding(self.target_probs))
        return SetMass(float(sums.mass.mean()), target, math.hypot(_standard_error(sums.mass), allowance))


def _standard_error(values: Tensor) -> float:
    """Standard error of the mean of (n,) values; 0 for a single one."""
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0
