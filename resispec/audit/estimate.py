"""Audit at a real vocabulary: the emitted law as an average of `law` over sampled sibling tuples.

Averaging the conditional law instead of emitted tokens removes the noise of accepting, rejecting and the
final draw: what is left is the noise of the drafted siblings, and most of that is taken away by
`resispec.audit.controls`. Nothing of size (tuples, V) outlives its chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.audit.controls import RARE_EVENTS, controls, multiples, reduced
from resispec.audit.laws import accepted, check_rows, emitted
from resispec.distributions import sum_rounding
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws, SiblingRule

CHOOSING = 0.4
"""The share of the tuples that choose a set; the others measure it."""


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
class Deviation:
    """A measured amount whose mean is at most 0 under an exact rule, and its standard error."""

    value: float
    error: float

    @property
    def z(self) -> float:
        """The amount in standard errors; an exact rule exceeds 4 with probability 3.2e-5."""
        if self.error == 0:
            return math.copysign(math.inf, self.value) if self.value else 0.0
        return self.value / self.error

    @property
    def p_value(self) -> float:
        """The probability that an exact rule deviates at least as far upwards."""
        return math.erfc(self.z / math.sqrt(2)) / 2


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
    def total_variation(self) -> Deviation:
        """law(S) - p(S): its expectation is 0 under an exact rule, else at most the true total variation."""
        found = self.excess_set
        return Deviation(found.law - found.target, found.error)

    def excess(self, ceiling: float) -> Deviation:
        """How far the acceptance lies above the ceiling that holds for exact rules."""
        allowance = resolution(ceiling, self.num_tuples, self.rounding)
        return Deviation(self.acceptance - ceiling, math.hypot(self.acceptance_error, allowance))


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
    run = _Pass(rule, target_probs, draft_probs, tuples)
    if tuples.draws.are_random:
        siblings = run.draw(tuples.num_tuples, generator)
        num_choosing = round(CHOOSING * tuples.num_tuples)
        choosing, measuring = siblings[:num_choosing], siblings[num_choosing:]
    else:
        choosing = measuring = run.draw(1, generator)
    first, mean = run.choose(choosing)
    chosen = mean > target_probs
    rest, masses = run.measure(measuring, chosen)
    sums = first + rest if tuples.draws.are_random else rest
    law, spread = sums.law()
    if not bool(law.isfinite().all()):
        raise FloatingPointError(
            "the rule's law holds NaN or infinite values; wrap it in CheckedRule to learn where"
        )
    acceptance = float(sums.accepted.mean()), _standard_error(sums.accepted)
    return Estimate(
        law, spread, run.mass(masses, chosen), *acceptance, sums.count, sum_rounding(target_probs)
    )


def pool(deviations: Sequence[Deviation]) -> Deviation:
    """The mean of independent deviations, so that many weak signs become one: errors add in squares.

    Raises InvalidInput when there is none.
    """
    count = len(deviations)
    if not count:
        raise InvalidInput("no deviations to average; at least 1 is needed")
    value = sum(one.value for one in deviations) / count
    return Deviation(value, math.sqrt(sum(one.error**2 for one in deviations)) / count)


@dataclass(frozen=True)
class _Sums:
    """Sums over n tuples of the emitted law and of its square, (V,) float64, and all acceptances, (n,)."""

    law_sum: Tensor
    square_sum: Tensor
    accepted: Tensor

    @property
    def count(self) -> int:
        return len(self.accepted)

    def __add__(self, other: _Sums) -> _Sums:
        accepted = torch.cat((self.accepted, other.accepted))
        return _Sums(self.law_sum + other.law_sum, self.square_sum + other.square_sum, accepted)

    def law(self) -> tuple[Tensor, Tensor]:
        """The mean law and its standard error, (V,) each."""
        mean = self.law_sum / self.count
        variance = (self.square_sum / self.count - mean * mean).clamp_min(0)
        return mean, (variance / max(1, self.count - 1)).sqrt()


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

    def choose(self, siblings: Tensor) -> tuple[_Sums, Tensor]:
        """Sums over tuples (n, B), and the mean law less its controls, (V,)."""
        num_controls = 1 + siblings.shape[1]
        level = self.target_probs.new_zeros(num_controls, len(self.target_probs), dtype=torch.float64)
        products = level.new_zeros(num_controls, num_controls + 1)  # of controls with controls, with the law

        def observe(laws: Tensor, known: Tensor) -> None:
            level.add_(known.sum(0))
            products.add_((known @ torch.cat((known, laws[:, None]), 1).mT).sum(0))

        sums = self.sums(siblings, observe)
        mean, known_mean = sums.law()[0], level / sums.count
        spread = products / sums.count - known_mean @ torch.cat((known_mean, mean[None])).T
        return sums, mean - multiples(spread[:, :-1], spread[:, -1], sums.count) @ known_mean

    def measure(self, siblings: Tensor, chosen: Tensor) -> tuple[_Sums, Tensor]:
        """Sums over tuples (n, B), and the mass of the set `chosen` (V,) bool in each, less its controls."""
        inside, masses = chosen.to(self.target_probs.dtype), []

        def observe(laws: Tensor, known: Tensor) -> None:
            masses.append(torch.cat((known @ inside, (laws @ inside)[:, None]), 1).double())

        sums, found = self.sums(siblings, observe), torch.cat(masses)
        return sums, reduced(found[:, -1], found[:, :-1])

    def sums(self, siblings: Tensor, observe: Callable[[Tensor, Tensor], None]) -> _Sums:
        """Running sums; `observe` is shown every chunk's emitted laws (C, V) and their controls (C, K, V)."""
        law_sum = torch.zeros_like(self.target_probs, dtype=torch.float64)
        square_sum, hits = law_sum.clone(), []
        for tokens in siblings.split(self.rows):
            shape = (len(tokens), len(self.target_probs))
            given = self.target_probs.expand(shape), self.draft_probs.expand(shape), tokens, self.tuples.draws
            law = self.rule.law(*given)
            laws = emitted(law, tokens)
            law_sum += laws.sum(0)
            square_sum += laws.square().sum(0)
            hits.append(accepted(law, tokens).double())
            observe(laws, controls(*given))
        return _Sums(law_sum, square_sum, torch.cat(hits))

    def mass(self, masses: Tensor, chosen: Tensor) -> SetMass:
        """The mass (n,) in every tuple of a set that other tuples chose."""
        target = float(self.target_probs[chosen].sum(dtype=torch.float64))
        allowance = resolution(target, len(masses), sum_rounding(self.target_probs))
        return SetMass(float(masses.mean()), target, math.hypot(_standard_error(masses), allowance))


def _standard_error(values: Tensor) -> float:
    """Standard error of the mean of (n,) values; 0 for a single one."""
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0
