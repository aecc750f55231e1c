"""Verdict on comparisons: from their statistics to a finding, and the smallest bias that would have shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from referee.audit.comparisons import POWER, Comparison
from referee.audit.statistics import z_of
from resispec.audit.verdict import MIN_TOKENS, Finding, Judgement, Statistic, equal_share, first_with_reasons

FALSE_ALARM_RATE = 1e-3
"""Bound of the chance that an audit finds a bias in an exact engine, however its statistics depend."""
NOMINAL_RATE = FALSE_ALARM_RATE / 2
"""Total false-alarm budget, split equally over statistics (union bound).

The other half is for chances that are not exact so far out: those of a chi-square with cells expected 8
times were found 6 times too small at 2e-5, which is why `chi_square` expects more of a cell.
"""


@dataclass(frozen=True)
class JudgedComparison(Judgement):
    """A comparison with its finding and one line per reason.

    smallest_bias: for kinds of bias, the total variation that would have been found with probability POWER;
    at temperature 0, the share of tokens.
    """

    comparison: Comparison
    smallest_bias: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """The finding in words; where no bias was seen, with the least that would have shown."""
        if self.finding is not Finding.NO_BIAS_SEEN or not self.smallest_bias:
            return self.finding
        is_sampled = self.comparison.smallest_share is None
        unit = "total variation" if is_sampled else "share of tokens that are not greedy"
        return f"{self.finding} (a {unit} above {max(self.smallest_bias.values()):.2g} would have shown)"

    @property
    def more_tokens(self) -> int:
        """Further tokens, in each arm where there are two, that would find half of the smallest bias.

        It shrinks with the root of the number of tokens; a share of them, with the number.
        """
        return self.comparison.tokens * (3 if self.comparison.smallest_share is None else 1)


def limit_of(comparisons: Iterable[Comparison]) -> float:
    """The least chance that a statistic may have: its share of NOMINAL_RATE."""
    return equal_share(NOMINAL_RATE, sum(comparison.num_statistics for comparison in comparisons))


def judge_comparison(comparison: Comparison, limit: float) -> JudgedComparison:
    """Judge a comparison.

    undecided: the statistics are doubtful. biased: otherwise, when something impossible happened or a
    statistic has a chance below `limit`. undecided: otherwise, with fewer than MIN_TOKENS effective tokens.
    no bias seen: otherwise.
    """
    groups = comparison.groups.items()
    every = [(group, *named) for group, statistics in groups for named in statistics.items()]
    far = [found for found in every if found[2].p_value < limit]
    deviations = (*comparison.impossible, *(_line(*found, limit) for found in far))
    doubts = comparison.open
    if any(name == "eos" for _, name, _ in far):
        doubts += comparison.without_eos
    errors = z_of(limit) + z_of(2 * (1 - POWER))
    smallest = {kind: min(1.0, errors * size) for kind, size in comparison.sensitivity.items()}
    if comparison.smallest_share is not None:
        smallest["tokens that are not greedy"] = comparison.smallest_share
    is_short = comparison.effective < MIN_TOKENS
    few = f"{comparison.effective:.0f} tokens that count; at least {MIN_TOKENS} are needed"
    nothing = f"no deviation ({comparison.tokens} tokens)"
    if every:
        largest = max(abs(statistic.z) for *_, statistic in every)
        nothing = (
            f"no deviation in {len(every)} statistics ({comparison.tokens} tokens): the largest |z| is "
            f"{largest:.1f}, allowed are about {z_of(limit):.1f}"
        )
    judgement = first_with_reasons(
        (Finding.UNDECIDED, (*doubts, *deviations) if doubts else ()),
        (Finding.BIASED, deviations),
        (Finding.UNDECIDED, (few,) if is_short else ()),
        (Finding.NO_BIAS_SEEN, (nothing,)),
    )
    return JudgedComparison(judgement.finding, judgement.reasons, comparison, smallest)


def overall(findings: Sequence[Finding]) -> Finding:
    """Biased where one is; otherwise undecided where one is."""
    worst = (Finding.BIASED, Finding.UNDECIDED, Finding.NO_BIAS_SEEN)
    return next(finding for finding in worst if finding in findings)


def _line(group: str, name: str, statistic: Statistic, limit: float) -> str:
    where = "" if group == "all" else f" ({group})"
    chances = f"by chance {statistic.p_value:.1g}; allowed: chances from {limit:.1g}"
    return f"{name}{where} z = {statistic.z:.1f} over {statistic.n} tokens, {chances}"
