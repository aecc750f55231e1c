"""Report of an audit: transcripts are rescored, compared and judged, and findings put in words."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from referee.audit.alternatives import DRAFT_SET, LIKELIEST_SET
from referee.audit.arm import (
    Arm,
    about_copies,
    chance_of_repeats,
    copies_in,
    measure,
    token_bar,
)
from referee.audit.bets import CONFIDENCE, Excess, Wealth, in_figures
from referee.audit.comparisons import (
    BET_RATE,
    FALSE_ALARM_RATE,
    POWER,
    Comparison,
    JudgedComparison,
    judge_comparison,
    limits_of,
    with_control,
    with_target,
)
from referee.audit.notes import notes
from referee.audit.own_check import own_check
from referee.audit.statistics import z_of
from referee.audit.table import ArmLine, table_lines
from referee.audit.terms import COLDEST, NEAR_TIE
from referee.conditions import (
    KINDS,
    between,
    by_condition,
    check_arms,
    control_for,
    in_words,
    unread_keys,
)
from referee.control import matching
from referee.rescoring import Scorer, check_fit
from referee.transcripts import Condition, Transcript
from resispec.audit.verdict import Finding, worst
from resispec.errors import InvalidInput

_AGAINST_TARGET = {
    Finding.NO_BIAS_SEEN: "under the rows' settings no difference from the target model's law "
    "was found",
    Finding.BIASED: "the engine does not emit the target model's law: for its speculation, other "
    "kernels, precision or weights, or settings that the rows do not say; a "
    "control arm tells them apart",
    Finding.UNDECIDED: "whether the engine emits the target model's law is undecided",
}
_DIFFERENCE = {
    Finding.NO_BIAS_SEEN: "no difference between the engine with and without speculation was found",
    Finding.BIASED: "speculation differs from the engine without it",
    Finding.UNDECIDED: "whether speculation differs from the engine without it is undecided",
}
_CONTROL = {
    Finding.NO_BIAS_SEEN: "without speculation no difference from the reference model was found",
    Finding.BIASED: "without speculation, too, the engine differs from the reference model: other "
    "kernels, precision or weights, or settings that the rows do not say",
    Finding.UNDECIDED: "whether the engine without speculation differs from the reference model "
    "is undecided",
}
OF_DRAFT = (DRAFT_SET, LIKELIEST_SET)
"""The sets of tokens that a bias toward the draft makes more frequent."""
_ALONE = (
    "the transcripts deviate from the target and the control was not found to, but the difference "
    "of the two can still be chance; more tokens decide whether it is the speculation"
)
_CONTROL_ALONE = (
    "the control deviates from the target and the transcripts were not found to: without "
    "speculation the engine has other kernels, precision or weights, or settings that the rows do "
    "not say; a difference from such a control accuses no speculation"
)
_GREEDY = (
    f"rows at temperature 0, or up to {COLDEST:.2g}, where rounding decides, are no samples: of "
    "them it was asked whether every token is the most "
    f"probable one, or as good within {NEAR_TIE:g} of its logit"
)
Case = tuple[Condition, Condition | None, Comparison]
"""A comparison with the condition of its arm, and that of the arm beside it if there is one."""
JudgedCase = tuple[Condition, Condition | None, JudgedComparison]
"""A judged comparison with these two conditions."""


@dataclass(frozen=True)
class TranscriptsReport:
    """Findings of an audit.

    finding: about the transcripts against the control if there is one, otherwise against the
    target; with several arms, the worst of this and the findings between arms. summary: the verdict
    in sentences. judgements: of all comparisons, the deciding ones first. notes: hints for readers.
    limit: the least p-value that a statistic may have. e_limit: the e-value below which bets must
    stay. arms: a line for each arm of the transcripts, if there are several. num_deciding: the
    number of judgements that decide the finding. cause: the likely cause of a bias, "" if there is
    none or it is not known.
    """

    finding: Finding
    summary: tuple[str, ...]
    judgements: tuple[JudgedComparison, ...]
    notes: tuple[str, ...]
    limit: float
    e_limit: float
    arms: tuple[ArmLine, ...] = ()
    num_deciding: int = 1
    cause: str = ""

    @property
    def allowed_z(self) -> float:
        """The largest |z| that a normal statistic may have."""
        return z_of(self.limit)

    @property
    def verdict(self) -> str:
        """The finding in words, see `JudgedComparison.verdict`.

        A biased engine's total variation is that from the target, if it is biased against it, too.
        """
        if self.finding is Finding.NO_BIAS_SEEN:
            return self.weakest.verdict
        if self.finding is not Finding.BIASED:
            return self.finding
        of_transcripts = (
            one.verdict
            for one in self.judgements
            if one.finding is Finding.BIASED
            and one.comparison.least_variation > 0
            and not one.comparison.is_of_control
        )
        return next(of_transcripts, self.finding)

    @property
    def weakest(self) -> JudgedComparison:
        """The deciding judgement that would have shown the least.

        It is about the same rows as the first: sampled ones, or those at temperature 0.
        """
        is_greedy = self.judgements[0].comparison.is_greedy
        deciding = self.judgements[: self.num_deciding]
        alike = [one for one in deciding if one.comparison.is_greedy is is_greedy]
        return max(alike, key=lambda one: max(one.smallest_bias.values(), default=0.0))

    @property
    def headline(self) -> str:
        """One line: arms with a bias if others have none, its likely cause, and the certificate.

        The certificate is of the transcripts against the target, whatever the verdict is about; of
        several arms, of the one with the largest bound.
        """
        cause = [f"likely cause: {self.cause}"] if self.cause else []
        biased = [line.name for line in self.arms if line.finding is Finding.BIASED]
        if cause and 0 < len(biased) < len(self.arms):
            cause.insert(0, f"found only in: {'; '.join(biased)}")
        bounds = self._bounds
        intervals = [f"{name} {one.low:.4f} to {one.high:.4f}" for name, one in bounds.items()]
        if not intervals:
            reason = "no sampled tokens, or rows share random numbers"
            return "; ".join((*cause, f"no certificate: {reason}"))
        of_arm = " of the worst arm" if self.arms else ""
        if unbounded := [one.what for one in self._own if one.details["is_shared"]]:
            without = f"rows share random numbers in {'; '.join(unbounded)}"
            of_arm += f" that has bounds ({without})"
        certificate = (
            f"certificate{of_arm}: with {CONFIDENCE:.0%} confidence the target's mean mass is "
            f"exceeded by {', '.join(intervals)}"
        )
        highs = [max(0.0, bounds[name].high) for name in OF_DRAFT if name in bounds]
        if highs and not cause and not unbounded:
            certificate += (
                ", so a bias toward the draft has a total variation of at most "
                f"{max(highs):.2g}, whether it drafts by its law or its likeliest token (other "
                "biases are not bounded)"
            )
        return "; ".join((*cause, certificate))

    @property
    def _bounds(self) -> Mapping[str, Excess]:
        """The bounds of the mean excess of the arm of the transcripts whose bounds are worst.

        Of a bias that is the arm that shows the most of it, else the one that allows the most.
        """

        def worst(case: Comparison) -> tuple[float, float]:
            highs = [case.excess[name].high for name in OF_DRAFT if name in case.excess]
            highs = highs or [one.high for one in case.excess.values()]
            bounds = max(highs), case.least_variation
            return bounds[::-1] if self.finding is Finding.BIASED else bounds

        bounded = [one for one in self._own if one.excess]
        return max(bounded, key=worst).excess if bounded else {}

    @property
    def _own(self) -> list[Comparison]:
        """The comparisons of the transcripts' sampled rows with the target."""
        cases = [one.comparison for one in self.judgements]
        return [one for one in cases if "is_shared" in one.details and not one.is_of_control]


def audit_transcripts(
    transcripts: Sequence[Transcript],
    target: Scorer,
    draft: Scorer | None = None,
    control: Sequence[Transcript] | None = None,
) -> TranscriptsReport:
    """Audit whether an engine emits the target's law, by its transcripts and any control arm.

    draft: the engine's draft model; with it a bias toward it shows in fewer tokens. control:
    transcripts of the same engine without speculation, for the same prompts under the same
    settings; the verdict is then about the difference, in which the engine's other deviations from
    the target cancel.

    Raises InvalidInput for a row that the models cannot have read or written, which the message
    names; if there are no rows, or copies of some, see `audit_arms`; if rows of one side name
    several models; for rows that were given up beside a control or another load, start, turn or
    context; and for a control with mostly the same rows, where the law makes that improbable, with
    other settings, weights or precision, or with drafted tokens. Raises NoVerdict if a model's
    logits are not numbers, or if something is biased but `own_check` does not clear the target's
    own tokens.
    """

    def chance_of(number: int) -> float:
        assert control is not None
        return chance_of_repeats(measure(control, target), transcripts, number)

    arms = [transcripts] if control is None else [transcripts, control]
    for rows in arms:  # before anything is rescored, which takes long
        check_fit([target] if draft is None else [target, draft], rows)
    check_arms(transcripts, control, chance_of)
    _check_answered(transcripts, control)
    parts, *others = map(by_condition, arms)
    for condition in parts if others else ():
        control_for(condition, [*others[0]])
    num_tokens = sum(len(row.output_token_ids) for rows in arms for row in rows)
    with token_bar(desc="rescoring", total=num_tokens) as bar:
        measured = [measure(rows, target, draft, bar.update) for rows in arms]
    return with_own_check(audit_arms(*measured), measured[0], target, draft)


def _check_answered(
    transcripts: Sequence[Transcript], control: Sequence[Transcript] | None = None
) -> None:
    """Raise InvalidInput if a sampled row was given up that is compared with rows of another arm.

    See `matching.check_answered`; rows count up to the limits that both arms have.
    """
    parts = by_condition(transcripts)
    pairs = []
    if control is not None:
        pairs.append({"transcripts": transcripts, "control": control})
    for _, *two in between(list(parts), control is not None):
        arms = {in_words(one, parts, "transcripts"): parts[one] for one in two}
        pairs.append({name: [transcripts[row] for row in rows] for name, rows in arms.items()})
    for pair in pairs:
        sides = [matching.sampled(rows) for rows in pair.values()]
        if all(sides):
            named = zip(pair, matching.within_limits(sides), strict=True)
            matching.check_answered(dict(named))


def with_own_check(
    report: TranscriptsReport, arm: Arm, target: Scorer, draft: Scorer | None = None
) -> TranscriptsReport:
    """A report with the notes of `own_check` where anything in it is called biased.

    arm: that of the transcripts. Raises NoVerdict as `own_check`.
    """
    if all(judgement.finding is not Finding.BIASED for judgement in report.judgements):
        return report
    own = own_check(arm.transcripts, target, draft)
    return replace(report, notes=(*report.notes, *own))


def audit_arms(arm: Arm, control: Arm | None = None) -> TranscriptsReport:
    """Audit rescored transcripts, without `own_check`. control: an arm under the same settings.

    If rows name several conditions (loads, starts, turns, contexts), each is judged against the
    target, against the condition with the smallest number of one kind, see `between`, and against
    the control of this condition or its like, see `control_for`. Rows that repeat others, see
    `copies_in`, are left out. Copies are no new evidence, but a biased engine may repeat itself,
    and is called biased if the rest shows it. Otherwise it raises InvalidInput, as it does like
    `check_arms`.
    """
    sides = [arm] if control is None else [arm, control]
    kept, lines = [], []
    for side in sides:
        copies = copies_in(side)
        if copies:
            lines.append(about_copies(side, copies))
            rows = [row for row in range(len(side.transcripts)) if row not in copies]
            side = side.of_rows(rows)
        kept.append(side)
    report = _audit(*kept)
    if lines and report.finding is not Finding.BIASED:
        raise InvalidInput(
            f"{lines[0]}; allowed: each such answer once, or rows that name the seed that they "
            "share"
        )
    counted = (f"{line}; the first of each such answer counts" for line in lines)
    return replace(report, notes=(*report.notes, *counted))


def _audit(arm: Arm, control: Arm | None = None) -> TranscriptsReport:
    """The report of `audit_arms` on rows of which none repeats another."""
    sides = [arm] if control is None else [arm, control]
    if control is None:
        about_models = check_arms(arm.transcripts)
        _check_answered(arm.transcripts)
    else:
        chance_of = partial(chance_of_repeats, control, arm.transcripts)
        about_models = check_arms(arm.transcripts, control.transcripts, chance_of)
        _check_answered(arm.transcripts, control.transcripts)
    parts = arm.by_condition
    controls = {} if control is None else control.by_condition
    conditions = list(parts)
    names = {one: in_words(one, conditions, "transcripts") for one in conditions}
    groups: dict[str, list[Case]] = {"difference": []}
    for one, part in parts.items() if controls else ():
        other = controls[control_for(one, list(controls))]
        cases = with_control(f"{names[one]} against the control", part, other)
        groups["difference"] += [(one, None, case) for case in cases]
    for kind, one, base in between(conditions, control is not None):
        what = f"{names[one]} against {in_words(base, conditions)}"
        cases = with_control(what, parts[one], parts[base])
        groups.setdefault(kind.name, []).extend((one, base, case) for case in cases)
    groups["transcripts"] = [
        (one, None, case) for one, part in parts.items() for case in with_target(names[one], part)
    ]
    groups["control"] = [
        (one, None, replace(case, is_of_control=True))
        for one, part in controls.items()
        for case in with_target(in_words(one, list(controls), "control"), part)
    ]
    comparisons = [case for group in groups.values() for *_, case in group]
    limits = limits_of(comparisons)
    judged = {
        name: [(one, base, judge_comparison(case, *limits)) for one, base, case in group]
        for name, group in groups.items()
    }
    apart = ("transcripts", "control") if control is not None else ("control",)
    findings = {name: _worst(group) for name, group in judged.items() if group}
    finding, sentences = _decided_apart(conditions, list(controls), judged)
    arms = ("transcripts", "control")
    deviating = [name for name in arms if findings.get(name) is Finding.BIASED]
    if deviating == ["control"] and (cause := _cause(deviating, judged)):
        sentences.append(f"likely cause of the control's deviation: {cause}")
    for kind in KINDS:
        if kind.name in findings:
            finding = worst([finding, findings[kind.name]])
            sentences.append(kind.sentence(findings[kind.name]))
    if arm.gaps is not None:
        sentences.append(_GREEDY)
    # A difference does not say which of its sides deviates, so a deviation from the target comes
    # first. What both the transcripts and the control have, cancels in their difference alone.
    telling = ["transcripts", *(name for name in judged if name != "control")]
    if len(deviating) == 2:
        telling.insert(0, "difference")
    return TranscriptsReport(
        finding,
        (*sentences, *unread_keys(row for side in sides for row in side.transcripts)),
        tuple(judgement for group in judged.values() for *_, judgement in group),
        (*notes(arm, control, findings), *about_models),
        *limits,
        tuple(_arm_lines(conditions, list(controls), judged)) if len(conditions) > 1 else (),
        sum(len(group) for name, group in judged.items() if name not in apart),
        _cause(telling, judged) if finding is Finding.BIASED else "",
    )


def _decided_apart(
    conditions: Iterable[Condition],
    controls: Sequence[Condition],
    judged: Mapping[str, Sequence[JudgedCase]],
) -> tuple[Finding, list[str]]:
    """The worst of the decisions about each condition's sampled rows, and about its greedy rows.

    What deviates in one of them excuses nothing in another. Every condition has the same settings,
    that of the control, too, so it has the same kinds of rows.
    """
    decisions = []
    for condition in conditions:
        of_arm = {"transcripts": condition}
        if controls:
            of_arm |= {"difference": condition, "control": control_for(condition, controls)}
        for is_greedy in (False, True):
            findings = {}
            for name, one in of_arm.items():
                cases = [case for case in judged[name] if _is_of(case, one, is_greedy)]
                if cases:
                    findings[name] = _worst(cases)
            if findings:
                decisions.append(_decided(findings))
    finding = worst(found for found, _ in decisions)
    sentences = next(said for found, said in decisions if found is finding)
    return finding, sentences


def _is_of(case: JudgedCase, condition: Condition, is_greedy: bool) -> bool:
    about, _, judgement = case
    return about == condition and judgement.comparison.is_greedy is is_greedy


def _decided(findings: Mapping[str, Finding]) -> tuple[Finding, list[str]]:
    """The finding about transcripts, and the sentences that say it.

    They are compared with the control if there is one, else with the target. The difference from a
    control does not say which of the two deviates. So it accuses nobody if the control alone is
    biased against the target. If the transcripts alone are, and the difference is not biased, it is
    open which of the two they deviate from.
    """
    finding = findings["transcripts"]
    if "control" not in findings:
        return finding, [_AGAINST_TARGET[finding]]
    difference, control = findings["difference"], findings["control"]
    if control is Finding.BIASED and finding is not Finding.BIASED:
        if difference is Finding.BIASED:
            return Finding.UNDECIDED, [_CONTROL_ALONE]
        return difference, [_DIFFERENCE[difference], _CONTROL_ALONE]
    if finding is Finding.BIASED and Finding.BIASED not in (difference, control):
        return Finding.UNDECIDED, [_ALONE, _CONTROL[control]]
    return difference, [_DIFFERENCE[difference], _CONTROL[control]]


def _cause(names: Iterable[str], judged: Mapping[str, Sequence[JudgedCase]]) -> str:
    """The first likely cause of a bias in these groups of judgements, "" if none is known."""
    causes = (case.cause for name in names for *_, case in judged[name] if case.cause)
    return next(causes, "")


def _arm_lines(
    conditions: Sequence[Condition],
    controls: Sequence[Condition],
    judged: Mapping[str, Sequence[JudgedCase]],
) -> Iterator[ArmLine]:
    """A line for each condition; its sampled rows and its greedy rows are one line."""
    for condition in conditions:
        of_arm = {
            name: [case for case in group if case[0] == condition] for name, group in judged.items()
        }
        about = of_arm["difference" if controls else "transcripts"]
        beside = [
            (in_words(base, conditions), case.finding)
            for group in of_arm.values()
            for _, base, case in group
            if base is not None
        ]
        differing, undecided = (
            tuple(dict.fromkeys(name for name, finding in beside if finding is wanted))
            for wanted in (Finding.BIASED, Finding.UNDECIDED)
        )
        cases = [case for *_, case in about]
        bets = [one.comparison.wealth for one in cases]
        statistics = [
            abs(statistic.z)
            for one in cases
            for part in one.comparison.groups.values()
            for statistic in part.values()
        ]
        sizes = [size for one in cases for size in one.smallest_bias.values()]
        yield ArmLine(
            {name: value for name, value in condition._asdict().items() if value is not None},
            in_words(condition, conditions),
            sum(one.comparison.tokens for one in cases),
            max((wealth.largest_log for wealth in bets if wealth is not None), default=None),
            max(statistics, default=None),
            max(sizes, default=None),
            _decided_apart([condition], controls, judged)[0],
            differing,
            undecided,
        )


def _worst(cases: Iterable[JudgedCase]) -> Finding:
    return worst(case.finding for *_, case in cases)


def report_lines(report: TranscriptsReport) -> Iterator[str]:
    """Lines of the verdict, its comparisons, and the smallest bias that would have shown."""
    yield f"verdict: {report.verdict}"
    yield f"  {report.headline}"
    yield from (f"  {sentence}" for sentence in report.summary)
    if report.arms:
        yield from ("", *table_lines(report.arms))
    for judgement in report.judgements:
        comparison = judgement.comparison
        size = f"{comparison.tokens} tokens in {comparison.rows} rows"
        yield from ("", f"{comparison.what} ({size}): {judgement.verdict}")
        yield from (f"  {reason}" for reason in judgement.reasons)
        for group, statistics in comparison.groups.items():
            cells = (
                f"{name} {statistic.z:.1f}{'*' if statistic.p_value < report.limit else ''}"
                for name, statistic in statistics.items()
            )
            yield f"  z, {group}: {', '.join(cells)}"
        if (wealth := comparison.wealth) is not None:
            yield (
                f"  bets: e-value {in_figures(wealth.log_e_value)}, at its largest "
                f"{in_figures(wealth.largest_log)} by the bet on {wealth.winner}; biased from "
                f"{report.e_limit:,.0f}"
            )
        yield from (f"  {fact}" for fact in comparison.facts)
        if judgement.smallest_bias:
            kinds = ", ".join(
                f"{kind} from {size:.2g}" for kind, size in judgement.smallest_bias.items()
            )
            unit = (
                "total variation a token"
                if comparison.smallest_share is None
                else "share of the tokens"
            )
            yield (
                f"  would have been found {POWER:.0%} of the time, by {unit}: {kinds}; half of it "
                f"with {judgement.more_tokens} more tokens an arm"
            )
    if report.notes:
        yield from ("", *(f"note: {note}" for note in report.notes))
    yield from (
        "",
        f"An exact engine is called biased with probability below {FALSE_ALARM_RATE:g} (by each "
        f"statistic with about {report.limit:.1g}, which a normal one has beyond "
        f"{report.allowed_z:.2f}; by all bets with {BET_RATE:g}, at whatever token one stops).",
    )


def report_json(report: TranscriptsReport) -> dict[str, Any]:
    """Everything in a report, in plain types; infinity and NaN become None."""
    plain = json.dumps(asdict(report), default=Wealth.plain)
    content = json.loads(plain, parse_constant=lambda _: None)
    for judgement, entry in zip(report.judgements, content["judgements"], strict=True):
        entry["more_tokens"] = judgement.more_tokens
    return content | {
        "headline": report.headline,
        "false_alarm_rate": FALSE_ALARM_RATE,
        "power": POWER,
    }
