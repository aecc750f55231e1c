"""From evidence to a verdict: exact, biased or undecided, with the numbers that decide it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist

from resispec.audit.chi_square import ChiSquare
from resispec.audit.estimate import Deviation
from resispec.audit.settled import CERTAIN_P, SUSPICIOUS_P
from resispec.audit.z_score import ZScore

TOLERANCE = 1e-5
"""Enumerated errors above this are bias: a rule that computes in float32 stays below it, one in float64
below 1e-12."""
LIMIT = 4.0
"""Statistics further out than this many standard errors are bias."""
LEAST_P = 1e-5
"""Counts that are less likely than this are bias. There are many of them, so it is stricter than LIMIT."""
SUSPICIOUS = NormalDist().inv_cdf(1 - SUSPICIOUS_P)
"""A normal lies so many standard errors above 0 with probability SUSPICIOUS_P."""
POWER = 1.28
"""What lies so many standard errors above a limit in the mean is beyond it nine times in ten."""
MIN_TOKENS = 1000
"""Fewer audited tokens than this are never enough for `exact`."""
MIN_VARIANCE: Mapping[str, float] = {"surprisal": 100.0, "overdraft": 25.0, "rank": 6.0}
"""The least variance of a sum that is judged: below it one rare token makes a large z out of nothing."""


class Finding(StrEnum):
    """What the evidence says. EXACT: there is enough of it, and no bias was found. BIASED: one was found."""

    EXACT = "exact"
    BIASED = "biased"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Evidence:
    """All that was measured about one verifier with one kind of draws. What is missing is None or empty.

    enumerated_error: worst total variation, by enumeration in float64 (rules and trees). total_variations:
    estimated, by the name of what it was estimated on. simulations: counts of what `verify` drew, by the name
    of what was counted. z_scores: from real decoding, named "surprisal", "overdraft" and "rank", or with a
    detail after a colon ("surprisal: c4, T=0.6"). excesses: acceptance minus its ceiling, by the name of what
    it was measured on.
    """

    enumerated_error: float | None = None
    total_variations: Mapping[str, Deviation] = field(default_factory=dict)
    simulations: Mapping[str, ChiSquare] = field(default_factory=dict)
    z_scores: Mapping[str, ZScore] = field(default_factory=dict)
    excesses: Mapping[str, Deviation] = field(default_factory=dict)

    @property
    def num_statistics(self) -> int:
        """How many random statistics can raise a false alarm."""
        parts = (self.total_variations, self.simulations, self.z_scores, self.excesses)
        return sum(map(len, parts))

    @property
    def false_alarm_rate(self) -> float:
        """A bound of the probability that an exact verifier is called biased by what was `settled`.

        Two accidents must meet: a statistic that is suspicious and, in fresh random numbers, one of those
        measured with it that is beyond its limit. A normal lies more than LIMIT standard errors above 0 with
        probability 3.2e-5, on either side of it with 6.3e-5. However dependent the statistics are, their
        probabilities add up (union bound).
        """
        tail = math.erfc(LIMIT / math.sqrt(2)) / 2
        together = [(2, tail)] * len({*self.total_variations, *self.excesses})
        together += [(len(self.simulations), LEAST_P), (len(self.z_scores), 2 * tail)]
        return sum(n * (CERTAIN_P + min(1.0, n * SUSPICIOUS_P) * limit) for n, limit in together)

    @property
    def smallest_seen(self) -> float:
        """The total variation at one node that is seen nine times in ten; NaN without estimates.

        It looks suspicious then, and measured AGAIN times as long it is beyond LIMIT. It holds on the laws
        that were tried, if the tuples that choose a set find where the bias is.
        """
        errors = [found.error for found in self.total_variations.values()]
        return (SUSPICIOUS + POWER) * max(errors) if errors else math.nan


REQUIRED = ("enumerated_error", "total_variations", "simulations", "z_scores", "excesses")
"""What must be there for the verdict `exact`."""


@dataclass(frozen=True)
class Judgement:
    """A verdict and one line per reason."""

    finding: Finding
    reasons: tuple[str, ...]


def judge(evidence: Evidence, required: Collection[str] = REQUIRED) -> Judgement:
    """Judge a verifier by what was measured.

    biased: an enumerated error above TOLERANCE; a z-score whose sum has at least MIN_VARIANCE and |z| above
    LIMIT, or an infinite one; an estimated total variation or an acceptance excess more than LIMIT standard
    errors above 0; counts less likely than LEAST_P; NaN anywhere.
    undecided: otherwise, when no z-score has MIN_TOKENS tokens, one has less than MIN_VARIANCE, or a required
    item is missing.
    exact: otherwise.

    Enumeration raises no false alarms; for the rest see `Evidence.false_alarm_rate`.

    required: the fields of Evidence that `exact` needs; leave out what a decoder cannot have (no draft law:
    only "z_scores").
    """
    biased = [
        *_enumeration(evidence),
        *_deviations(evidence),
        *_simulations(evidence),
        *_z_scores(evidence, _is_biased),
    ]
    missing = [f"no evidence: {name.replace('_', ' ')}" for name in required if not _present(evidence, name)]
    tokens = max((score.n for score in evidence.z_scores.values()), default=0)
    few = (
        [f"{tokens} audited tokens; at least {MIN_TOKENS} are needed"]
        if evidence.z_scores and tokens < MIN_TOKENS
        else []
    )
    undecided = [*few, *_z_scores(evidence, _is_weak), *missing]
    if biased:
        return Judgement(Finding.BIASED, tuple(biased))
    if undecided:
        return Judgement(Finding.UNDECIDED, tuple(undecided))
    audited = f" ({tokens} audited tokens)" if evidence.z_scores else ""
    found = f"no deviation in {evidence.num_statistics} statistics{audited}"
    if not math.isnan(evidence.smallest_seen):
        found += f"; a total variation of {evidence.smallest_seen:.2g} at one node would have been seen"
    return Judgement(Finding.EXACT, (found,))


def _enumeration(evidence: Evidence) -> list[str]:
    error = evidence.enumerated_error
    if error is None or error <= TOLERANCE:  # NaN is not below the tolerance
        return []
    return [f"enumerated total variation {error:.3g}; an exact rule stays below {TOLERANCE:g}"]


def _deviations(evidence: Evidence) -> list[str]:
    kinds = (
        ("total variation", evidence.total_variations),
        ("acceptance above its ceiling", evidence.excesses),
    )
    return [
        f"{kind} ({name}) {found.value:.3g}, {found.z:.1f} standard errors; allowed: {LIMIT:g}"
        for kind, deviations in kinds
        for name, found in deviations.items()
        if not found.z <= LIMIT
    ]


def _simulations(evidence: Evidence) -> list[str]:
    return [
        f"simulation ({name}): counts of {found.n} outcomes that an exact verifier gives with probability "
        f"{found.p_value:.1g}; allowed: {LEAST_P:g}"
        for name, found in evidence.simulations.items()
        if not found.p_value >= LEAST_P
    ]


def _z_scores(evidence: Evidence, holds: Callable[[str, ZScore], bool]) -> list[str]:
    return [
        f"{name} z = {score.z:.1f} over {score.n} tokens, variance {score.variance:.3g}; "
        f"allowed: |z| up to {LIMIT:g}, variance at least {_least_variance(name):g}"
        for name, score in evidence.z_scores.items()
        if holds(name, score)
    ]


def _is_biased(name: str, score: ZScore) -> bool:
    return abs(score.z) == float("inf") or (not _is_weak(name, score) and not abs(score.z) <= LIMIT)


def _is_weak(name: str, score: ZScore) -> bool:
    return score.variance < _least_variance(name)


def _least_variance(name: str) -> float:
    return MIN_VARIANCE.get(name.split(":")[0], max(MIN_VARIANCE.values()))


def _present(evidence: Evidence, name: str) -> bool:
    value = getattr(evidence, name)
    return value is not None and value != {}
