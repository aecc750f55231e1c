"""One vocabulary of evidence: statistics, the rule for measuring again, findings, and the judge.

Audits, transcripts, the pytest plug-in and the tables share it; this module imports no torch.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

TOLERANCE = 1e-5
"""Enumerated errors above this are bias: rules in float32 stay below, in float64 below 1e-12."""
LIMIT = 4.0
"""Statistics more than this many standard errors out are bias."""
LEAST_P = 5e-6
"""Counts with a p-value below this are bias; the limit is low since there are many counts."""
SUSPICIOUS_P = 0.003
"""p-value below which a statistic is measured again with fresh random numbers."""
CERTAIN_P = 1e-9
"""p-value below which no second measurement is needed."""
AGAIN = 4
"""Sample-size factor of the second measurement."""
SUSPICIOUS = NormalDist().inv_cdf(1 - SUSPICIOUS_P)
"""z-score above which a one-sided statistic is suspicious."""
POWER = 1.28
"""z-offset for 90 % power: effects of limit + POWER standard errors are flagged in 90 % of runs."""
MIN_TOKENS = 1000
"""Fewest audited tokens for the finding that no bias is seen."""
MIN_VARIANCE: Mapping[str, float] = {"surprisal": 100.0, "overdraft": 25.0, "rank": 6.0}
"""Least variance of a sum that is judged: below it a rare token makes a large z out of nothing."""
FINAL_TOKENS = ("residual", "leaf")
"""Where the final token of a verdict comes from: a node with children, or one without."""
AGAINST_OUTCOMES = (
    "verdicts",
    *FINAL_TOKENS,
    *(f"{place} {name}" for place in FINAL_TOKENS for name in ("surprisal", "rank")),
)
"""Statistics of `simulate` that compare `verify` with `outcomes`, not with the target's law."""
REQUIRED = ("enumerated_error", "total_variations", "simulations", "z_scores", "excesses")
"""Evidence that the finding that no bias is seen requires."""
LEVELS = ("enumerated", "simulated", "decoded")
"""Kinds of evidence from trees, of which it is said how deep they were."""


class Finding(StrEnum):
    """The finding of an audit, in the words in which it is printed.

    BIASED: the emitted tokens do not follow the target. INCONSISTENT: `verify` and `outcomes` do
    not have the same law; the tokens may be right. NO_BIAS_SEEN: there is enough evidence, and
    samples found nothing. UNDECIDED: there is too little evidence. "Exact" is no finding: only
    enumerated laws are called exact.
    """

    BIASED = "biased"
    INCONSISTENT = "inconsistent"
    NO_BIAS_SEEN = "no bias seen"
    UNDECIDED = "undecided"


def worst(findings: Iterable[Finding]) -> Finding:
    """The worst of one or more findings: with too little evidence is worse than with enough."""
    order = (Finding.BIASED, Finding.INCONSISTENT, Finding.UNDECIDED, Finding.NO_BIAS_SEEN)
    return min(findings, key=order.index)


@dataclass(frozen=True)
class Statistic:
    """A measured number and how likely it is under an exact verifier.

    value: in its own unit, such as a total variation, a sum or a chi-square. z: the same in
    standard errors. p_value: probability of a value at least as far out. n: number of outcomes
    behind it, 0 if not counted. error: standard error of `value`; NaN for a chi-square, which has
    `degrees` of freedom.
    """

    value: float
    z: float
    p_value: float
    n: int = 0
    error: float = math.nan
    degrees: int = 1


Statistics = Mapping[str, Statistic]


def deviation(value: float, error: float) -> Statistic:
    """A statistic whose mean is at most 0 under an exact verifier; only values above 0 count."""
    z = value / error if error else math.copysign(math.inf, value) if value else 0.0
    return Statistic(value, z, math.erfc(z / math.sqrt(2)) / 2, error=error)


def z_score(deviation_sum: float, variance_sum: float, n: int) -> Statistic:
    """Standardise a sum of n terms.

    If nothing is random, z is 0 for a rounding error, else infinite.

    Raises FloatingPointError for NaN.
    """
    if math.isnan(deviation_sum) or math.isnan(variance_sum):
        raise FloatingPointError("a z-score's terms are NaN; laws are finite and sum to 1")
    error = math.sqrt(max(0.0, variance_sum))
    if error:
        z = deviation_sum / error
    else:
        z = 0.0 if abs(deviation_sum) <= 1e-6 * n else math.copysign(math.inf, deviation_sum)
    return Statistic(deviation_sum, z, math.erfc(abs(z) / math.sqrt(2)), n, error)


def z_scores(terms: Mapping[str, ArrayLike]) -> dict[str, Statistic]:
    """The z-scores of MIN_VARIANCE's statistics that have terms, by name.

    terms: for each statistic NAME, deviations (K,) under the key NAME and their variances (K,)
    under NAME_variance, see `resispec.audit.z_score`. Where an overdraft is not defined, for lack
    of a draft's law, both are NaN or None. Raises FloatingPointError for any other NaN.
    """
    scores = {}
    for name in MIN_VARIANCE:
        deviations, variances = (
            np.asarray(terms[key], np.float64) for key in (name, f"{name}_variance")
        )
        if name == "overdraft":
            is_known = ~np.isnan(variances)
            deviations, variances = deviations[is_known], variances[is_known]
        if len(deviations):
            scores[name] = z_score(float(deviations.sum()), float(variances.sum()), len(deviations))
    return scores


def remeasured(measure: Callable[[int], Statistics]) -> Statistics:
    """The result of `measure(1)`, or of `measure(AGAIN)` if the first looks suspicious.

    measure: takes a factor of the sample's size, and uses fresh random numbers in every call. The
    first measurement does not count if there is a second. So an exact verifier is hardly ever
    accused by chance, and a verifier with a small bias is measured for longer.
    """
    statistics = measure(1)
    is_suspicious = (
        CERTAIN_P <= min(statistic.p_value for statistic in statistics.values()) < SUSPICIOUS_P
    )
    return measure(AGAIN) if is_suspicious else statistics


@dataclass(frozen=True)
class Walked:
    """The ground that a simulation of `verify` covers, see `resispec.audit.simulate.walked`.

    siblings: the most children of a node. settings: the temperatures and filters of the laws, first
    those that are walked most. moved: the mass of an error that shows there at one in ten of a
    walk's tokens. moved_elsewhere: that of an error that shows under the other settings at every
    token.
    """

    siblings: int
    settings: tuple[str, ...]
    moved: float
    moved_elsewhere: float


@dataclass(frozen=True)
class Evidence:
    """All measurements of one verifier with one kind of draws. Missing evidence is None or empty.

    enumerated_error: worst total variation, by enumeration in float64 (rules and trees).
    total_variations: estimated, by the name of the nodes. simulations: counts of what `verify`
    drew, by the names of the scene and of the statistic, see `simulate`. z_scores: of real
    decoding, by what was decoded ("3 levels"; "" for one decoding) and the statistic's name.
    excesses: acceptance minus its ceiling, by the name of the nodes. ceilings: these ceilings,
    means over the nodes of a name. levels: deepest level of a tree that was walked, by the kind of
    evidence, one of LEVELS.
    walked: the ground that `simulations` cover beside the levels of "simulated".
    """

    enumerated_error: float | None = None
    total_variations: Statistics = field(default_factory=dict)
    simulations: Mapping[str, Statistics] = field(default_factory=dict)
    z_scores: Mapping[str, Statistics] = field(default_factory=dict)
    excesses: Statistics = field(default_factory=dict)
    levels: Mapping[str, int] = field(default_factory=dict)
    walked: Walked | None = None
    ceilings: Mapping[str, float] = field(default_factory=dict)

    def __or__(self, other: "Evidence") -> "Evidence":
        """Both pieces of evidence about the same verifier; what both have is the other's."""
        levels = {
            kind: max(part.levels[kind] for part in (self, other) if kind in part.levels)
            for kind in LEVELS
            if kind in {*self.levels, *other.levels}
        }
        error = self.enumerated_error
        return Evidence(
            error if other.enumerated_error is None else other.enumerated_error,
            total_variations={**self.total_variations, **other.total_variations},
            simulations={**self.simulations, **other.simulations},
            z_scores={**self.z_scores, **other.z_scores},
            excesses={**self.excesses, **other.excesses},
            ceilings={**self.ceilings, **other.ceilings},
            levels=levels,
            walked=other.walked or self.walked,
        )

    @property
    def num_statistics(self) -> int:
        """Number of random statistics, each of which can raise a false alarm."""
        groups = (
            self.total_variations,
            self.excesses,
            *self.simulations.values(),
            *self.z_scores.values(),
        )
        return sum(map(len, groups))

    @property
    def num_tokens(self) -> int:
        """Audited tokens of the longest decoding."""
        return max(
            (score.n for scores in self.z_scores.values() for score in scores.values()), default=0
        )

    @property
    def false_alarm_rate(self) -> float:
        """A bound of the chance that `remeasured` statistics call an exact verifier biased.

        Two accidents must coincide: a statistic is suspicious and, with fresh random numbers, a
        statistic that is measured together with it (on the same nodes, scene or tree) is beyond its
        limit. A normal number lies more than LIMIT standard errors above 0 with probability 3.2e-5,
        on either side of 0 with 6.3e-5. However dependent the statistics are, their probabilities
        add up (union bound). Simulations are looked at twice, and so are those that are measured
        again, see `resispec.audit.simulate.simulated`.
        """
        tail = math.erfc(LIMIT / math.sqrt(2)) / 2
        groups = [
            *((2, tail) for _ in {*self.total_variations, *self.excesses}),
            *((len(counts), 2 * LEAST_P) for counts in self.simulations.values()),
            *((len(scores), 2 * tail) for scores in self.z_scores.values()),
        ]
        return sum(n * (2 * CERTAIN_P + min(1.0, n * SUSPICIOUS_P) * limit) for n, limit in groups)

    @property
    def smallest_seen(self) -> float:
        """The total variation at a node that is detected nine times in ten; NaN without estimates.

        It then looks suspicious, and is beyond LIMIT when measured again with a larger sample. This
        holds for the laws that were tried, if the tuples that choose a set find where the bias is.
        It is said of the law that a verifier states, by `law` or `outcomes`, and not of what
        `verify` draws.
        """
        errors = [estimate.error for estimate in self.total_variations.values()]
        return (SUSPICIOUS + POWER) * max(errors) if errors else math.nan


@dataclass(frozen=True)
class Judgement:
    """A finding and one line per reason."""

    finding: Finding
    reasons: tuple[str, ...]


def first_with_reasons(*cases: tuple[Finding, Sequence[str]]) -> Judgement:
    """The first finding that has a reason, with all of its reasons; the last case must have one."""
    return next(Judgement(finding, tuple(reasons)) for finding, reasons in cases if reasons)


def holm(p_values: ArrayLike, rate: float) -> NDArray[np.bool_]:
    """Whether each of many p-values (K,) is bias, by Holm's rule (Holm 1979): (K,).

    However the p-values depend on each other, exact verifiers raise any false alarm at `rate` at
    most: the smallest is bias up to rate / K, the next up to rate / (K - 1), and so on until the
    first that is not.
    """
    p_values = np.asarray(p_values, np.float64)
    order = np.argsort(p_values)
    shares = rate / np.arange(len(order), 0, -1)
    is_bias = np.zeros(len(order), bool)
    is_bias[order] = np.logical_and.accumulate(p_values[order] <= shares)
    return is_bias


def is_weighty(name: str, score: Statistic) -> bool:
    """Whether a z-score can be judged: it is infinite, or its sum has at least MIN_VARIANCE."""
    return math.isinf(score.z) or score.error**2 >= MIN_VARIANCE[name]


def judge(evidence: Evidence, required: Collection[str] = REQUIRED) -> Judgement:
    """Judge a verifier by evidence; an exact one is accused at most at `Evidence.false_alarm_rate`.

    biased: a z-score whose sum has at least MIN_VARIANCE and |z| above LIMIT, or an infinite
    z-score; counts of tokens less likely than LEAST_P; or, if verdicts follow `outcomes`, an
    enumerated error above TOLERANCE, an estimated total variation or an acceptance excess more than
    LIMIT standard errors above 0; NaN anywhere.
    inconsistent: otherwise, when counts of verdicts are less likely than LEAST_P under `outcomes`.
    undecided: otherwise, when no z-score has MIN_TOKENS tokens, a z-score has less than
    MIN_VARIANCE, or a required item is missing.
    no bias seen: otherwise; its reason says what was walked, what would have shown and what could
    hide.

    required: the fields of Evidence that `no bias seen` needs; leave out fields that a decoder
    cannot have (no draft law: only "z_scores").
    """
    outcome_reasons = [*_too_high(evidence)]
    token_reasons = [*_unlikely(evidence, against_outcomes=False), *_scored(evidence, weak=False)]
    inconsistencies = [*_unlikely(evidence, against_outcomes=True)]
    doubts = [*_scored(evidence, weak=True)]
    if evidence.z_scores and evidence.num_tokens < MIN_TOKENS:
        doubts.insert(0, f"{evidence.num_tokens} audited tokens; at least {MIN_TOKENS} are needed")
    missing = [name for name in required if getattr(evidence, name) in (None, {})]
    doubts += [f"no evidence: {name.replace('_', ' ')}" for name in missing]
    is_biased = token_reasons or (outcome_reasons and not inconsistencies)
    note = "`verify` does not draw from the law that `outcomes` says; the tokens may be right"
    return first_with_reasons(
        (Finding.BIASED, [*outcome_reasons, *token_reasons, *inconsistencies] if is_biased else []),
        (Finding.INCONSISTENT, inconsistencies and [*inconsistencies, *outcome_reasons, note]),
        (Finding.UNDECIDED, doubts),
        (Finding.NO_BIAS_SEEN, [_nothing_seen(evidence)]),
    )


def worst_statistic(evidence: Evidence) -> str:
    """The strongest evidence against a verifier: an enumerated error, or else the least p-value."""
    error = evidence.enumerated_error
    if error is not None and not error <= TOLERANCE:
        return f"enumerated total variation {error:.3g}"
    statistics = {
        f"total variation, {name}": stat for name, stat in evidence.total_variations.items()
    }
    statistics |= {
        f"acceptance above its ceiling, {name}": stat for name, stat in evidence.excesses.items()
    }
    for scene, counts in evidence.simulations.items():
        statistics |= {f"simulated {name}, {scene}": count for name, count in counts.items()}
    for decoding, scores in evidence.z_scores.items():
        weighty = {name: score for name, score in scores.items() if is_weighty(name, score)}
        statistics |= {f"{name} of decoding, {decoding}": score for name, score in weighty.items()}

    def badness(name: str) -> tuple[bool, float, float]:
        """NaN is the worst. Far out many p-values are 0, so that z decides."""
        statistic = statistics[name]
        return math.isnan(statistic.z), -statistic.p_value, abs(statistic.z)

    worst = max(statistics, key=badness)
    return f"{worst}: z = {statistics[worst].z:.1f}"


def _nothing_seen(evidence: Evidence) -> str:
    """The reason that no bias is seen: what was covered, what would have shown, what could hide."""
    parts, gaps, smallest = [], [], evidence.smallest_seen
    if evidence.enumerated_error is not None:
        parts.append(f"exact where enumerated (error {evidence.enumerated_error:.1e})")
    tokens = f" ({evidence.num_tokens} audited tokens)" if evidence.z_scores else ""
    parts.append(f"no deviation in {evidence.num_statistics} statistics{tokens}")
    if levels := evidence.levels:
        parts.append(
            ", ".join(f"{kind} on levels 1 to {deepest}" for kind, deepest in levels.items())
        )
        gaps.append(f"begins below level {min(levels.values())}")
    if not math.isnan(smallest):
        told = f"a total variation above {smallest:.2g} at one node would have shown"
        parts.append(f"in the law that the verifier states, {told}")
        gaps.append("is rarer than that")
    if walked := evidence.walked:
        first, *others = walked.settings
        told = f"{walked.moved:.2g} of the mass moved at one in ten of a walk's tokens at {first}"
        if others:
            told += f", or {walked.moved_elsewhere:.2g} at every token at {'; '.join(others)},"
        ground = f"at each position, up to {walked.siblings} siblings"
        parts.append(f"in what `verify` draws ({ground}), {told} would have shown")
        gaps.append("`verify` does more rarely or elsewhere")
    return "; ".join([*parts, f"what {' or '.join(gaps)} could hide"] if gaps else parts)


def _too_high(evidence: Evidence) -> Iterator[str]:
    """Measurements of the law of `outcomes` that lie above their limits, or are NaN."""
    error = evidence.enumerated_error
    if error is not None and not error <= TOLERANCE:
        yield f"enumerated total variation {error:.3g}; an exact rule stays below {TOLERANCE:g}"
    kinds = {
        "total variation": evidence.total_variations,
        "acceptance above its ceiling": evidence.excesses,
    }
    for kind, statistics in kinds.items():
        for name, stat in statistics.items():
            if not stat.z <= LIMIT:
                yield (
                    f"{kind} ({name}) {stat.value:.3g}, {stat.z:.1f} standard errors; allowed: "
                    f"{LIMIT:g}"
                )


def _unlikely(evidence: Evidence, against_outcomes: bool) -> Iterator[str]:
    kind = "a consistent" if against_outcomes else "an exact"
    for scene, counts in evidence.simulations.items():
        for name, count in counts.items():
            if (name in AGAINST_OUTCOMES) is against_outcomes and not count.p_value >= LEAST_P:
                yield (
                    f"simulation ({name}, {scene}): counts of {count.n} outcomes that {kind} "
                    f"verifier gives with probability {count.p_value:.1g}; allowed: {LEAST_P:g}"
                )


def _scored(evidence: Evidence, weak: bool) -> Iterator[str]:
    """The z-scores that rest on too little, if `weak`, else the other z-scores beyond LIMIT."""
    for decoding, scores in evidence.z_scores.items():
        for name, score in scores.items():
            is_out = not abs(score.z) <= LIMIT
            if not is_weighty(name, score) if weak else is_weighty(name, score) and is_out:
                yield (
                    f"{name}{decoding and f': {decoding}'} z = {score.z:.1f} over {score.n} "
                    f"tokens, variance {score.error**2:.3g}; allowed: |z| up to {LIMIT:g}, "
                    f"variance at least {MIN_VARIANCE[name]:g}"
                )
