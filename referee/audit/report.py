"""Report of an audit: transcripts are rescored, compared and judged,
and the findings put into words.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from referee.audit.arm import SHOWN, Arm, measure, token_bar
from referee.audit.bets import CONFIDENCE, DRAFT_SET, Wealth, in_figures
from referee.audit.comparisons import (
    BET_RATE,
    FALSE_ALARM_RATE,
    POWER,
    Comparison,
    JudgedComparison,
    e_limit_of,
    judge_comparison,
    limit_of,
    with_control,
    with_target,
)
from referee.audit.own_check import own_check
from referee.audit.statistics import PLACES, z_of
from referee.audit.terms import NEAR_TIE
from referee.rescoring import Scorer, check_fit
from referee.transcripts import NOTED, Transcript
from resispec.audit.verdict import Finding
from resispec.errors import InvalidInput, printable

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
_LOADS = {
    Finding.NO_BIAS_SEEN: "between its loads, the requests at a time, no difference was found",
    Finding.BIASED: "what the engine emits depends on its load, the requests that it has at a time",
    Finding.UNDECIDED: "whether what it emits depends on its load, the requests at a time, is "
    "undecided",
}
_ALONE = (
    "the transcripts deviate from the target and the control was not found to, but the difference "
    "of the two can still be chance; more tokens decide whether it is the speculation"
)
_GREEDY = (
    "rows at temperature 0 are no samples: of them it was asked whether every token is the most "
    f"probable one, or as good within {NEAR_TIE:g} of its logit"
)


@dataclass(frozen=True)
class TranscriptsReport:
    """Findings of an audit.

    finding: about the transcripts against the control if there is one, otherwise against the
    target; with several loads, the worse of this and the finding between loads. summary: the
    verdict in sentences. judgements: of all comparisons, the deciding ones first. notes: hints for
    readers. limit: the least p-value that a statistic may have. e_limit: the e-value below which
    bets must stay.
    """

    finding: Finding
    summary: tuple[str, ...]
    judgements: tuple[JudgedComparison, ...]
    notes: tuple[str, ...]
    limit: float
    e_limit: float

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
            return self.judgements[0].verdict
        if self.finding is not Finding.BIASED:
            return self.finding
        of_transcripts = (
            one.verdict
            for one in self.judgements
            if one.finding is Finding.BIASED
            and one.comparison.least_variation > 0
            and not one.comparison.what.startswith("control")
        )
        return next(of_transcripts, self.finding)

    @property
    def cause(self) -> str:
        """The likely cause of a bias, "" if there is none or it is not known."""
        causes = (one.cause for one in self.judgements if one.cause)
        return next(causes, "") if self.finding is Finding.BIASED else ""

    @property
    def headline(self) -> str:
        """One line: the likely cause of a bias, and the certificate.

        The certificate is of the transcripts against the target, whatever the verdict is about.
        """
        cause = [f"likely cause: {self.cause}"] if self.cause else []
        bounds = next(
            (one.comparison.excess for one in self.judgements if one.comparison.excess), {}
        )
        intervals = [f"{name} {one.low:.4f} to {one.high:.4f}" for name, one in bounds.items()]
        if not intervals:
            reason = "no sampled tokens, or rows share random numbers"
            return "; ".join((*cause, f"no certificate: {reason}"))
        certificate = (
            f"certificate: with {CONFIDENCE:.0%} confidence the target's mean mass is exceeded by "
            f"{', '.join(intervals)}"
        )
        if not cause and DRAFT_SET in bounds:
            certificate += ", so a bias toward the draft has a total variation of at most " + (
                f"{max(0.0, bounds[DRAFT_SET].high):.2g} (other biases are not bounded)"
            )
        return "; ".join((*cause, certificate))


def audit_transcripts(
    transcripts: Sequence[Transcript],
    target: Scorer,
    draft: Scorer | None = None,
    control: Sequence[Transcript] | None = None,
) -> TranscriptsReport:
    """Audit whether an engine emits the target's law, by its transcripts
    and a control arm if there is one.

    draft: the engine's draft model; with it a bias toward it shows in fewer tokens. control:
    transcripts of the same engine without speculation, for the same prompts under the same
    settings; the verdict is then about the difference, in which the engine's other deviations from
    the target cancel.
    Raises InvalidInput for a row that the models cannot have read or written, which the message
    names; if there are no rows; and for a control with the same rows or other settings. Raises
    NoVerdict if a model's logits are not numbers, or if something is biased but `own_check` does
    not clear the target's own tokens.
    """
    # At temperature 0 an exact engine writes the same rows twice.
    is_same = control is not None and list(control) == list(transcripts)
    if is_same and any(row.temperature > 0 for row in transcripts):
        raise InvalidInput(
            "the control has the same rows as the transcripts, so it can show nothing; allowed: "
            "rows of another run, without speculation, that differ in their tokens, `seed`, "
            "`engine` or any other key"
        )
    arms = [transcripts] if control is None else [transcripts, control]
    for rows in arms:  # before anything is rescored, which takes long
        check_fit([target] if draft is None else [target, draft], rows)
    settings: dict[tuple[int, int | None], set[str]] = {}
    for side, rows in enumerate(arms):
        for row in rows:
            settings.setdefault((side, row.concurrency), set()).add(row.setting)
    lists = dict.fromkeys("; ".join(sorted(names)) for names in settings.values())
    if len(lists) > 1:
        raise InvalidInput(
            "the transcripts and the control, under every load, have the settings "
            f"{' and '.join(lists)}; allowed: the same in all"
        )
    num_tokens = sum(len(row.output_token_ids) for rows in arms for row in rows)
    with token_bar(desc="rescoring", total=num_tokens) as bar:
        report = audit_arms(*(measure(rows, target, draft, bar.update) for rows in arms))
    if all(judgement.finding is not Finding.BIASED for judgement in report.judgements):
        return report
    return replace(report, notes=(*report.notes, *own_check(transcripts, target, draft)))


def audit_arms(arm: Arm, control: Arm | None = None) -> TranscriptsReport:
    """Audit rescored transcripts, without `own_check`. control: an arm under the same settings.

    If rows name several loads (numbers of requests at a time), each load is judged against the
    target, the larger loads against the smallest, and each against the control of this load or else
    of its smallest.
    """
    loads, controls = arm.by_load, {} if control is None else control.by_load
    (base_load, base), *others = loads.items()
    groups: dict[str, list[Comparison]] = {
        "difference": [],
        "loads": [],
        "transcripts": [],
        "control": [],
    }
    for load, part in loads.items():
        name = _named("transcripts", load, loads)
        if controls:
            load_control = controls.get(load, next(iter(controls.values())))
            groups["difference"] += with_control(f"{name} against the control", part, load_control)
        if part is not base:
            groups["loads"] += with_control(f"{name} against {_at_a_time(base_load)}", part, base)
        groups["transcripts"] += with_target(name, part)
    for load, part in controls.items():
        groups["control"] += with_target(_named("control", load, controls), part)
    comparisons = [comparison for group in groups.values() for comparison in group]
    limits = limit_of(comparisons), e_limit_of(comparisons)
    judgements = {
        name: [judge_comparison(case, *limits) for case in group] for name, group in groups.items()
    }
    findings = {
        name: _worst(case.finding for case in group) for name, group in judgements.items() if group
    }
    finding, sentences = findings["transcripts"], [_AGAINST_TARGET[findings["transcripts"]]]
    if control is not None:
        difference, baseline = findings["difference"], findings["control"]
        is_open = finding is Finding.BIASED and Finding.BIASED not in (difference, baseline)
        finding = Finding.UNDECIDED if is_open else difference
        sentences = [_ALONE if is_open else _DIFFERENCE[difference], _CONTROL[baseline]]
    if others:
        finding = _worst((finding, findings["loads"]))
        sentences.append(_LOADS[findings["loads"]])
    if arm.gaps is not None:
        sentences.append(_GREEDY)
    return TranscriptsReport(
        finding,
        (*sentences, *_unread([arm] if control is None else [arm, control])),
        tuple(judgement for group in judgements.values() for judgement in group),
        tuple(notes(arm, control, findings)),
        *limits,
    )


def _unread(arms: Iterable[Arm]) -> Iterator[str]:
    """One line that names the keys of rows that the audit neither reads nor knows,
    if there are any.
    """
    keys = {key for arm in arms for row in arm.transcripts for key in row.extra if key not in NOTED}
    if keys:
        names = [printable(key)[:40] for key in sorted(keys)]
        others = f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
        yield f"keys of the rows that were not read: {', '.join(names[:SHOWN])}{others}"


def _at_a_time(load: int) -> str:
    return f"{load or 'an unknown number'} at a time"


def _named(name: str, load: int, loads: Collection[int]) -> str:
    """A load of an arm in words; the arm's name alone if it has no other load."""
    return f"{name}, {_at_a_time(load)}" if len(loads) > 1 else name


def _worst(findings: Iterable[Finding]) -> Finding:
    return min(findings, key=(Finding.BIASED, Finding.UNDECIDED, Finding.NO_BIAS_SEEN).index)


def notes(arm: Arm, control: Arm | None, findings: Mapping[str, Finding]) -> Iterator[str]:
    """The notes on a report, a line each.

    findings: those of the arms against the target, by the arm.
    """
    arms = {"transcripts": arm} if control is None else {"transcripts": arm, "control": control}
    for name, side in arms.items():
        loads = side.by_load
        for load, part in loads.items():
            settings = _about_settings(part) if findings[name] is not Finding.NO_BIAS_SEEN else ()
            yield from (
                f"{_named(name, load, loads)}: {line}" for line in (*_about_rows(part), *settings)
            )
    if control is not None:
        prompts, others = (
            {row.prompt_token_ids for row in side.transcripts} for side in (arm, control)
        )
        if count := len(prompts ^ others):
            yield (
                f"{count} prompts are in one arm alone; with the same in both, less differs by "
                "chance"
            )


def _about_rows(arm: Arm) -> Iterator[str]:
    rows, ids = arm.transcripts, set(arm.target.eos_token_ids)
    engines = Counter(
        f"{row.engine} {row.engine_version or ''}".strip() for row in rows if row.engine
    )
    if engines:
        yield "written by " + ", ".join(
            f"{engine} ({count} rows)" for engine, count in engines.items()
        )
    if ids and not any(row.output_token_ids[-1] in ids for row in rows):
        yield "no row ends with an end-of-sequence token; if the engine emits them, log them"
    if overruns := [row for row in rows if ids.intersection(row.output_token_ids[:-1])]:
        yield (
            f"{len(overruns)} rows go on after an end-of-sequence token (the first: "
            f"{overruns[0].place}); what an engine appends to fill rows up is not emitted, so cut "
            "it off"
        )
    if arm.is_shared and arm.sharing is not None:
        yield (
            f"rows rise and fall together (z = {arm.sharing.z:.1f}), as one seed for several of "
            "them makes them, or a bias at some places alone; each row alone may be right, so "
            "many tokens count as few: give every request a seed of its own, or none"
        )


def _about_settings(arm: Arm) -> Iterator[str]:
    """Notes about settings that the engine may apply although the rows do not name them."""
    defaults = ", ".join(
        f"{name}={value:g}"
        for name, value in arm.target.defaults.items()
        if any(getattr(row, name) != value for row in arm.transcripts)
    )
    if defaults:
        yield (
            f"the target's generation_config.json says {defaults}, and not every row does; engines "
            "like vLLM apply it to requests that say nothing"
        )
    if arm.terms is None:
        return
    expected, last = arm.terms.chances.sum(0).tolist(), int(arm.terms.bucket.max())
    if (num_missed := sum(expected[last + 1 :])) >= 10:
        yield (
            f"no token came from beyond {PLACES[last]} by probability, where {num_missed:.1f} were "
            "expected; are top_k, top_p or min_p on and not declared?"
        )


def report_lines(report: TranscriptsReport) -> Iterator[str]:
    """Lines of the verdict, the comparisons it rests on,
    and the smallest bias that would have shown.
    """
    yield f"verdict: {report.verdict}"
    yield f"  {report.headline}"
    yield from (f"  {sentence}" for sentence in report.summary)
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
