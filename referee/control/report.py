"""Judgement of two arms without the target, and the report in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from referee.conditions import (
    by_condition,
    check_arms,
    check_emitted,
    control_for,
    in_words,
    unread_keys,
    written_by,
)
from referee.control import matching
from referee.control.copies import copies
from referee.control.families import CAUSES, families_of
from referee.control.matching import MatchedRows
from referee.control.permutation import PermutationTest, log_arrangements
from referee.control.planting import smallest_shares
from referee.control.served import ServedLaws, laws_of
from referee.transcripts import Transcript
from resispec.audit.verdict import MIN_TOKENS, Finding, worst
from resispec.errors import InvalidInput

FALSE_ALARM_RATE = 1e-3
"""Upper bound of the chance that two arms with one law are called different."""
SHUFFLES = 10
"""The shuffles that are drawn, at most, for one that may reach the observed statistic."""
_VERDICTS = {
    Finding.NO_BIAS_SEEN: "no difference seen",
    Finding.BIASED: "biased: the engine with speculation differs from its control",
    Finding.UNDECIDED: "undecided",
}
_MEANING = {
    Finding.NO_BIAS_SEEN: "between the engine with and without speculation no difference was "
    "found; without the target, a fault that both arms have cannot show",
    Finding.BIASED: "the two arms do not have one law; the control is taken for right, and with "
    "the target one could say which of them is",
    Finding.UNDECIDED: "whether speculation changes the law is undecided",
}


@dataclass(frozen=True)
class ArmComparison:
    """Findings about the rows of two arms of one condition.

    what: the two sides in words. rows, tokens: those of the speculative arm and of the control,
    matched. prompts: the prompts that both have. p_value: None if nothing could be tested.
    statistics: the standardised statistic of each family. cause: the likely cause of a difference,
    else "". reasons: lines for the finding. smallest_shares: for each kind of planted tokens, the
    share that would have been found nine times in ten, None if none would; empty if the arms
    differ.
    """

    what: str
    finding: Finding
    rows: tuple[int, int]
    tokens: tuple[int, int]
    prompts: int
    p_value: float | None
    statistics: dict[str, float]
    cause: str
    reasons: tuple[str, ...]
    smallest_shares: dict[str, float | None]


@dataclass(frozen=True)
class ControlReport:
    """Findings of `judge_control`.

    finding: the worst of all comparisons. notes: hints for readers. limit: the p-value up to which
    two arms differ, or half of it where all rows have served log-probabilities.
    """

    finding: Finding
    comparisons: tuple[ArmComparison, ...]
    notes: tuple[str, ...]
    limit: float

    @property
    def verdict(self) -> str:
        """The finding in words."""
        return _VERDICTS[self.finding]


def judge_control(
    transcripts: Sequence[Transcript], control: Sequence[Transcript]
) -> ControlReport:
    """Judge whether an engine emits with speculation what it emits without, by its rows alone.

    transcripts, control: with and without speculation, for the same prompts under the same
    settings. The rows of each load, start or context are compared with those of the control that
    have the same, or else with its first ones.

    Raises InvalidInput if the arms have other settings, share seeds or are mostly the same rows, if
    one has rows of several models, if the control drafted, if outputs hold more than was emitted,
    see `check_emitted`, if a row was given up, and if one arm alone logs how rows end.
    """
    arms = [matching.sampled(transcripts), matching.sampled(control)]
    notes = []
    later = [row for arm in arms for row in arm if (row.turn or 1) > 1]
    if later:
        arms = [[row for row in arm if (row.turn or 1) == 1] for arm in arms]
        notes.append(
            f"{len(later)} rows of later turns were not compared: their prompts hold the answers "
            "of their own arm; with a --target they are judged"
        )
    if greedy := len(transcripts) + len(control) - len(later) - sum(map(len, arms)):
        notes.append(
            f"{greedy} rows at temperature 0 were not compared: they are no samples, and without "
            "the target's logits a near tie cannot be told from a bias"
        )
    if not all(arms):
        raise InvalidInput(
            "an arm has no row at a temperature above 0, and without a --target only samples are "
            "compared; give --target, or rows of another temperature"
        )
    for arm in arms:
        check_emitted(arm)
    notes += check_arms(*arms)
    for name, arm in zip(("transcripts", "control"), arms, strict=True):
        notes += [f"{name}: {line}" for line in written_by(arm)]
    notes += unread_keys(chain(*arms))
    parts, controls = map(by_condition, arms)
    limit = FALSE_ALARM_RATE / len(parts)
    comparisons = []
    unused = set(controls)
    for condition, numbers in parts.items():
        beside = control_for(condition, [*controls])
        unused.discard(beside)
        rows = [arms[0][number] for number in numbers]
        others = [arms[1][number] for number in controls[beside]]
        name = in_words(condition, [*parts], "the transcripts") + "," * (len(parts) > 1)
        comparison, lines = _compare(name, rows, others, limit)
        comparisons.append(comparison)
        notes += [line for line in lines if line not in notes]
    if unused:
        names = "; ".join(in_words(one, [*controls]) for one in controls if one in unused)
        notes.append(f"rows of the control were not compared, those of {names}")
    finding = worst(one.finding for one in comparisons)
    return ControlReport(finding, tuple(comparisons), tuple(notes), limit)


def _compare(
    name: str,
    transcripts: Sequence[Transcript],
    control: Sequence[Transcript],
    limit: float,
) -> tuple[ArmComparison, list[str]]:
    """The comparison of rows of one condition, and notes."""
    matching.check_independent({"transcripts": transcripts, "control": control})
    arms = matching.within_limits([transcripts, control])
    names = {"transcripts": arms[0], "control": arms[1]}
    matching.check_answered(names)
    matching.check_ends(names)
    rows = matching.match(*arms)
    notes = []
    if alone := len(transcripts) + len(control) - (0 if rows is None else rows.num_rows):
        notes.append(f"{alone} rows were left out, whose prompts are in one arm alone")
    if line := matching.cuts([transcripts, control], arms):
        notes.append(line)
    if rows is None:
        what = f"{name} against the control"
        reason = "no prompt is in both arms; ask both for the same prompts"
        empty = (what, Finding.UNDECIDED, (0, 0), (0, 0), 0, None, {}, "", (reason,), {})
        return ArmComparison(*empty), notes
    laws, line = laws_of(rows)
    if laws is None and line:
        notes.append(line)
    if all(row.top_logprobs is not None for row in rows.transcripts):
        limit /= 2  # whether the laws are used depends on the arms, so there are two tests
    return _judged(name, rows, laws, limit, np.random.default_rng(0)), notes


def _judged(
    name: str,
    rows: MatchedRows,
    laws: ServedLaws | None,
    limit: float,
    generator: np.random.Generator,
) -> ArmComparison:
    by = "token ids" if laws is None else "token ids and the served log-probabilities"
    tokens = rows.tokens_of(True), rows.tokens_of(False)
    numbers = int(rows.is_speculative.sum()), int((~rows.is_speculative).sum())
    families = families_of(rows, laws)
    statistics: dict[str, float] = {}
    p_value, cause = None, ""
    shares: dict[str, float | None] = {}
    doubts = [*matching.doubts(rows), *copies(rows)]
    most = round(SHUFFLES / limit)
    # each of the arrangements is one outcome of a shuffle, so p-values are no smaller
    if not families or log_arrangements(rows.stratum, rows.is_speculative) < np.log(most):
        doubts.append("too few rows to shuffle; give more prompts, or more rows of each")
    else:
        test = PermutationTest(families, rows.stratum, rows.is_speculative, generator)
        statistics, p_value = test.standardised(), test.p_value(most)
    is_far = p_value is not None and p_value <= limit
    if statistics:
        winner = max(statistics, key=statistics.__getitem__)
        largest = (
            f"the largest of {len(statistics)} statistics, {winner}, is {statistics[winner]:.1f} "
            f"standard deviations above its mean in shuffled rows, by chance with probability "
            f"{p_value:.1g}; allowed: above {limit:.1g}"
        )
    if is_far and not doubts:
        finding, cause = Finding.BIASED, CAUSES[winner]
        reasons = [largest]
    else:
        if statistics and not doubts:
            shares = smallest_shares(rows, laws, limit, generator)
            if min(tokens) < MIN_TOKENS:
                doubts.append(f"{min(tokens)} tokens in an arm; at least {MIN_TOKENS} are needed")
            elif not any(shares.values()):
                doubts.append("no share of planted tokens would have been found; give more rows")
        finding = Finding.UNDECIDED if doubts else Finding.NO_BIAS_SEEN
        reasons = [*doubts]
        if statistics:
            reasons.append(largest)
    return ArmComparison(
        f"{name} against the control, by {by}",
        finding,
        numbers,
        tokens,
        len(set(rows.prompts)),
        p_value,
        statistics,
        cause,
        tuple(reasons),
        shares,
    )


def report_lines(report: ControlReport) -> Iterator[str]:
    """Lines of the verdict, of what it rests on, and of what would have been found."""
    yield f"verdict: {report.verdict}"
    causes = [one.cause for one in report.comparisons if one.cause]
    if causes:
        yield f"  likely cause: {causes[0]}"
    yield f"  {_MEANING[report.finding]}"
    for one in report.comparisons:
        yield ""
        yield (
            f"{one.what} (rows {one.rows[0]} and {one.rows[1]} of {one.prompts} prompts, tokens "
            f"{one.tokens[0]} and {one.tokens[1]}): {_VERDICTS[one.finding]}"
        )
        yield from (f"  {reason}" for reason in one.reasons)
        if one.statistics:
            cells = (f"{name} {value:.1f}" for name, value in one.statistics.items())
            yield f"  standardised: {', '.join(cells)}"
        if one.smallest_shares:
            yield f"  {_power(one)}"
    if report.notes:
        yield from ("", *(f"note: {note}" for note in report.notes))
    yield from (
        "",
        f"Two arms with one law are called different with probability {FALSE_ALARM_RATE:g} at "
        "most, whatever the law is, if their rows are independent: rows were shuffled within "
        "prompts.",
    )


def _power(one: ArmComparison) -> str:
    """The line about planted tokens."""
    found = {kind: share for kind, share in one.smallest_shares.items() if share is not None}
    missed = [kind for kind, share in one.smallest_shares.items() if share is None]
    parts = [f"{kind} from {share:g}" for kind, share in found.items()]
    if missed:
        parts.append(f"{' and '.join(missed)} not even if all tokens are replaced")
    return (
        "planted in one arm, found nine times in ten by the share of its tokens that are "
        f"replaced: {', '.join(parts)}; a bias whose text goes on smoothly can take more"
    )


def report_json(report: ControlReport) -> dict[str, Any]:
    """Everything in a report, in plain types."""
    content = asdict(report)
    content["comparisons"] = list(content["comparisons"])
    return content | {"verdict": report.verdict, "false_alarm_rate": FALSE_ALARM_RATE}
