"""From statistics to a verdict: consistent, biased or undecided, and what would have been seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from resispec.audit.transcripts.chances import z_of
from resispec.audit.transcripts.statistics import Statistic, Sums
from resispec.audit.transcripts.terms import Terms
from resispec.audit.verdict import MIN_TOKENS

FALSE_ALARM_RATE = 1e-3
"""A bound of the chance that an audit finds a bias in an exact engine, however its statistics depend."""
NOMINAL_RATE = FALSE_ALARM_RATE / 2
"""What all statistics may spend together, in equal shares (union bound).

The other half is for chances that are not exact so far out: those of a chi-square with cells expected 8
times were found 6 times too small at 2e-5, which is why `chi_square` expects more of a cell.
"""
MIN_CLUSTERS = 20
"""A variance between fewer prompts than this is no estimate."""
POWER = 0.9
"""How often a bias would be found that is called the smallest one to be found."""


class Finding(StrEnum):
    """What the tokens say. CONSISTENT: there are enough of them, and no bias was found. BIASED: one was."""

    CONSISTENT = "consistent"
    BIASED = "biased"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Comparison:
    """What was measured of one arm, or between two.

    what: the two that are compared, in words. tokens, rows: of the first. effective: how many independent
    tokens the first arm's count as, at most `tokens`. groups: statistics by their names, for all rows and for
    the settings that have enough tokens. impossible: what cannot happen and did, a line each. open: why the
    statistics are not to be trusted, a line each; nothing is biased then. without_eos: as `open`, but only
    where `eos` deviates. sensitivity: for kinds of bias, the total variation that one standard error is.
    smallest_share: of rows at temperature 0, the share of tokens which are not greedy that would have been
    found with probability POWER. facts: what else a reader should know, a line each. details: numbers alone.
    """

    what: str
    tokens: int
    rows: int
    effective: float
    groups: Mapping[str, Mapping[str, Statistic]]
    impossible: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    without_eos: tuple[str, ...] = ()
    sensitivity: Mapping[str, float] = field(default_factory=dict)
    smallest_share: float | None = None
    facts: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def num_statistics(self) -> int:
        """How many random statistics can raise a false alarm."""
        return sum(map(len, self.groups.values()))


@dataclass(frozen=True)
class Judgement:
    """A comparison's verdict and one line per reason.

    smallest_bias: for kinds of bias, the total variation that would have been found with probability POWER;
    at temperature 0, the share of tokens. more_tokens: how many tokens more would find half of it, in each
    arm where there are two.
    """

    comparison: Comparison
    finding: Finding
    reasons: tuple[str, ...]
    smallest_bias: Mapping[str, float]

    @property
    def more_tokens(self) -> int:
        """What is seen shrinks with the root of the number of tokens; a share of them, with the number."""
        return self.comparison.tokens * (3 if self.comparison.smallest_share is None else 1)


def limit_of(comparisons: Sequence[Comparison]) -> float:
    """The least chance that a statistic may have: its share of NOMINAL_RATE."""
    return NOMINAL_RATE / max(1, sum(one.num_statistics for one in comparisons))


def judge(comparison: Comparison, limit: float) -> Judgement:
    """Judge a comparison.

    undecided: the statistics are doubtful. biased: otherwise, when something impossible happened or a
    statistic has a chance below `limit`. undecided: otherwise, with fewer than MIN_TOKENS effective tokens.
    consistent: otherwise.
    """
    far = {
        (group, name): found
        for group, statistics in comparison.groups.items()
        for name, found in statistics.items()
        if found.p_value < limit
    }
    deviations = (*comparison.impossible, *(_line(*key, found, limit) for key, found in far.items()))
    doubts = list(comparison.open)
    if any(name == "eos" for _, name in far):
        doubts += comparison.without_eos
    few = f"{comparison.effective:.0f} tokens that count; at least {MIN_TOKENS} are needed"
    out = z_of(limit) + z_of(2 * (1 - POWER))
    smallest = {kind: min(1.0, out * one) for kind, one in comparison.sensitivity.items()}
    if comparison.smallest_share is not None:
        smallest["tokens that are not greedy"] = comparison.smallest_share
    if doubts:
        return Judgement(comparison, Finding.UNDECIDED, (*doubts, *deviations), smallest)
    if deviations:
        return Judgement(comparison, Finding.BIASED, deviations, smallest)
    if comparison.effective < MIN_TOKENS:
        return Judgement(comparison, Finding.UNDECIDED, (few,), smallest)
    return Judgement(comparison, Finding.CONSISTENT, (_nothing(comparison, limit),), smallest)


def overall(findings: Sequence[Finding]) -> Finding:
    """Biased where one is; otherwise undecided where one is."""
    worst = (Finding.BIASED, Finding.UNDECIDED, Finding.CONSISTENT)
    return next(finding for finding in worst if finding in findings)


def sensitivity(terms: Terms, sums: Sums) -> dict[str, float]:
    """For kinds of bias in these terms, the total variation that moves its statistic by one standard error.

    A change of temperature: p becomes p (1 + e (s - H)) with s the surprisal and H its mean, which moves by e
    times its variance; the total variation is e E|s - H| / 2. A shift to the draft: p becomes p + l (q - p);
    the total variation is what the event q > p gains.
    """
    surprisal = terms.names.index("surprisal")
    per_token = float(terms.sums[:, surprisal, 1].mean())
    share = float(terms.spread.mean()) / per_token if per_token > 0 else 0.0
    found = {"another temperature": math.sqrt(sums.variance_of("surprisal")) * share}
    if "overdraft" in terms.names:
        found["a shift to the draft"] = math.sqrt(sums.variance_of("overdraft"))
    return {kind: size for kind, size in found.items() if size > 0}


def _line(group: str, name: str, found: Statistic, limit: float) -> str:
    where = "" if group == "all" else f" ({group})"
    chances = f"by chance {found.p_value:.1g}; allowed: chances from {limit:.1g}"
    return f"{name}{where} z = {found.z:.1f} over {found.n} tokens, {chances}"


def _nothing(comparison: Comparison, limit: float) -> str:
    number = comparison.num_statistics
    if number == 0:
        return f"no deviation ({comparison.tokens} tokens)"
    every = [found for statistics in comparison.groups.values() for found in statistics.values()]
    largest = max(abs(found.z) for found in every)
    return (
        f"no deviation in {number} statistics ({comparison.tokens} tokens): the largest |z| is "
        f"{largest:.1f}, allowed are about {z_of(limit):.1f}"
    )
