"""Audit at a real vocabulary: the emitted law as an average of `law` over sampled sibling tuples.

Averaging the conditional law instead of emitted tokens removes the noise of accepting, rejecting
and the final draw: what is left is the noise of the drafted siblings, and most of that is taken
away by `resispec.audit.control_variates`. Nothing of size (tuples, V) outlives its chunk.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.audit.control_variates import RARE_EVENTS, controls, multiples, reduced
from resispec.audit.row_checks import accepted, check_pair, emitted
from resispec.audit.verdict import Statistic, deviation
from resispec.distributions import sum_rounding
from resispec.errors import InvalidInput
from resispec.verifiers.base import DrawsKind, SiblingRule

MAX_ELEMENTS = 1 << 18
"""Most elements, tuples times V, that are worked on at a time."""


@dataclass(frozen=True)
class Tuples:
    """Size of a sample: `num_tuples` tuples (at least 4) of `num_siblings` siblings."""

    num_siblings: int
    draws: DrawsKind
    num_tuples: int = 2000

    def __post_init__(self) -> None:
        if self.num_siblings < 1 or self.num_tuples < 4:
            raise InvalidInput(
                f"an estimate needs at least 1 sibling and 4 tuples; found {self.num_siblings} "
                f"siblings, {self.num_tuples} tuples"
            )


@dataclass(frozen=True)
class EstimatedLaw:
    """An estimate of the emitted law by sampling: its mass on a set S of tokens and on siblings.

    S was chosen on other tuples, where the law seemed to give S more than p does. mass: mean of
    law(S), minus its controls, with its standard error `mass_error`, which allows for `resolution`.
    target: p(S). acceptance: probability that the emitted token is one of the siblings, with its
    plain standard error. num_tuples: 1 for a point mass, where nothing is random. rounding: how far
    sums over laws may be from their true values, in the precision of the given laws.
    """

    mass: float
    target: float
    mass_error: float
    acceptance: float
    acceptance_error: float
    num_tuples: int
    rounding: float

    @property
    def total_variation(self) -> Statistic:
        """law(S) - p(S); mean 0 under an exact rule, else at most the true total variation."""
        return deviation(self.mass - self.target, self.mass_error)

    def excess(self, ceiling: float) -> Statistic:
        """The excess of the acceptance over the ceiling that holds for exact rules."""
        allowance = resolution(ceiling, self.num_tuples, self.rounding)
        return deviation(self.acceptance - ceiling, math.hypot(self.acceptance_error, allowance))


def resolution(mass: float, num_tuples: int, rounding: float) -> float:
    """The least standard error that n tuples can honestly claim for a mean of values in [0, 1].

    mass: the mean under the null hypothesis. rounding: how far sums of laws are from their true
    values.

    It is min(sqrt(mass (1 - mass) / n), RARE_EVENTS / n) + rounding. The first term is the largest
    deviation that a mean can have under the null (Bhatia-Davis). The second is needed because a
    tuple of probability below about 10 / n may not have been seen at all, and then the empirical
    variance is too small: a peaked law, all of whose tuples look alike, would be flagged. With
    n = 1 nothing is random.
    """
    bernoulli = math.sqrt(max(0.0, mass * (1 - mass)) / num_tuples)
    return (0.0 if num_tuples == 1 else min(bernoulli, RARE_EVENTS / num_tuples)) + rounding


def estimate(
    rule: SiblingRule,
    target_probs: Tensor,
    draft_probs: Tensor,
    tuples: Tuples,
    generator: Generator,
) -> EstimatedLaw:
    """Estimate, at one node, a rule's emitted law, total variation to the target and acceptance.

    target_probs, draft_probs: (V,) float32 or float64, on the generator's device. Chunks are summed
    in their precision, all else in float64. The first tuples choose the set that is measured on the
    others; with a point mass, the only tuple does both. Raises InvalidInput when p or q is no law
    (V,), FloatingPointError when the rule's laws are NaN or infinite.
    """
    check_pair(target_probs, draft_probs)
    chunk_size, hits = max(1, MAX_ELEMENTS // len(target_probs)), list[Tensor]()

    def chunks(siblings: Tensor) -> Iterator[Chunk]:
        for tokens in siblings.split(chunk_size):
            p, q = (probs.expand(len(tokens), -1) for probs in (target_probs, draft_probs))
            law = rule.law(p, q, tokens, tuples.draws)
            laws = emitted(law, tokens)
            if not bool(laws.isfinite().all()):
                raise FloatingPointError(
                    "the rule's law holds NaN or infinite values; wrap it in CheckedRule to learn "
                    "where"
                )
            hits.append(accepted(law, tokens).double())
            yield laws, controls(p, q, tokens, tuples.draws)

    siblings = _drawn(draft_probs, tuples, chunk_size, generator)
    num_tuples, rounding = len(siblings), sum_rounding(target_probs)
    num_choosing = round(0.4 * num_tuples)  # tuples that choose a set, which the others measure
    subset = _excess_set(chunks(siblings[: num_choosing or 1]), target_probs)
    masses = _masses(chunks(siblings[num_choosing:]), subset)
    target, acceptances = float(target_probs[subset].sum(dtype=torch.float64)), torch.cat(hits)
    error = math.hypot(_standard_error(masses), resolution(target, len(masses), rounding))
    acceptance = float(acceptances.mean()), _standard_error(acceptances)
    return EstimatedLaw(float(masses.mean()), target, error, *acceptance, num_tuples, rounding)


def pool(deviations: Sequence[Statistic]) -> Statistic:
    """The mean of independent deviations, where many weak signs add up: errors add in squares."""
    count = len(deviations)
    error = math.sqrt(sum(statistic.error**2 for statistic in deviations)) / count
    return deviation(sum(statistic.value for statistic in deviations) / count, error)


Chunk = tuple[Tensor, Tensor]
"""The emitted laws (C, V) and the controls (C, K, V) of C tuples."""


def _drawn(draft_probs: Tensor, tuples: Tuples, chunk_size: int, generator: Generator) -> Tensor:
    """Sibling tuples (n, B), drawn as in decoding; a single tuple if nothing is random."""
    draws, size = tuples.draws, tuples.num_siblings
    count = tuples.num_tuples if draws.are_random else 1
    if draws.are_independent:
        return draws.draw(draft_probs, count * size, generator).view(count, -1)
    parts = [min(chunk_size, count - start) for start in range(0, count, chunk_size)]
    return torch.cat([draws.draw(draft_probs.expand(n, -1), size, generator) for n in parts])


def _excess_set(chunks: Iterable[Chunk], target_probs: Tensor) -> Tensor:
    """The tokens (V,) bool to which the mean law, minus its controls, gives more than p does."""
    count = 0
    level = products = total = torch.zeros((), dtype=torch.float64, device=target_probs.device)
    for laws, variates in chunks:
        count += len(laws)
        total = total + laws.sum(0).double()  # (V,)
        level = level + variates.sum(0).double()  # (K, V)
        # (K, K + 1): of the controls with the controls and with the law
        products = (
            products + (variates @ torch.cat((variates, laws[:, None]), 1).mT).sum(0).double()
        )
    mean, variate_mean = total / count, level / count
    spread = products / count - variate_mean @ torch.cat((variate_mean, mean[None])).T
    return mean - multiples(spread[:, :-1], spread[:, -1], count) @ variate_mean > target_probs


def _masses(chunks: Iterable[Chunk], subset: Tensor) -> Tensor:
    """The mass (n,) of the set `subset` (V,) bool for every tuple, minus its controls."""
    masses = []
    for laws, variates in chunks:
        indicator = subset.to(laws.dtype)
        masses.append(torch.cat((variates @ indicator, (laws @ indicator)[:, None]), 1).double())
    columns = torch.cat(masses)
    return reduced(columns[:, -1], columns[:, :-1])


def _standard_error(values: Tensor) -> float:
    """Standard error of the mean of values (n,); 0 for a single value."""
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0
