"""The audit of transcripts: rescore them, compare, judge, and say what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from resispec.audit.transcripts.arms import measure
from resispec.audit.transcripts.comparing import with_control, with_target
from resispec.audit.transcripts.greedy import NEAR_TIE
from resispec.audit.transcripts.judging import Finding, Judgement, judge, limit_of, overall
from resispec.audit.transcripts.notes import notes
from resispec.audit.transcripts.rows import Transcript
from resispec.errors import InvalidInput
from resispec.models.scoring import Scorer, check_fit


@dataclass(frozen=True)
class Report:
    """What an audit found.

    finding: of the transcripts against the control where there is one, otherwise against the target.
    summary: the verdict in sentences. judgements: of every comparison, the ones that decide first. notes:
    what a reader should know besides. limit: the least chance that a statistic may have.
    """

    finding: Finding
    summary: tuple[str, ...]
    judgements: tuple[Judgement, ...]
    notes: tuple[str, ...]
    limit: float


def audit(
    transcripts: Sequence[Transcript],
    target: Scorer,
    draft: Scorer | None = None,
    control: Sequence[Transcript] | None = None,
    on_tokens: Callable[[int], None] = lambda _: None,
) -> Report:
    """Does an engine emit the target's law? From what it wrote, and from a control arm without speculation.

    draft: the engine's draft model, with which a bias toward it shows in fewer tokens. control: what the same
    engine wrote for the same prompts under the same settings without speculation; then the verdict is on the
    difference, in which what the engine does otherwise than the target cancels. on_tokens: told how many
    output tokens were rescored since it was last called.
    Raises InvalidInput, naming the row, for one that the models cannot have read or written; when there are
    no rows; and for a control with other settings.
    """
    _check(transcripts, control, [target] if draft is None else [target, draft])
    arm = measure(transcripts, target, draft, on_tokens)
    other = None if control is None else measure(control, target, draft, on_tokens)
    groups = {"transcripts": with_target("transcripts", arm)}
    if other is not None:
        groups = {
            "difference": with_control(arm, other),
            **groups,
            "control": with_target("control", other),
        }
    limit = limit_of([one for group in groups.values() for one in group])
    judged = {name: [judge(one, limit) for one in group] for name, group in groups.items()}
    findings = {name: overall([one.finding for one in group]) for name, group in judged.items()}
    return Report(
        findings.get("difference", findings["transcripts"]),
        _summary(findings, arm.gaps is not None),
        tuple(one for group in judged.values() for one in group),
        tuple(notes(arm, other, findings, target)),
        limit,
    )


def _check(
    transcripts: Sequence[Transcript], control: Sequence[Transcript] | None, scorers: Sequence[Scorer]
) -> None:
    """Raise InvalidInput for what cannot be audited."""
    if not transcripts or (control is not None and not control):
        raise InvalidInput("there are no transcripts; at least one row is needed")
    for one in (*transcripts, *(control or ())):
        for scorer in scorers:
            check_fit(scorer, one.written, one.place)
    if control is not None:
        settings, others = (sorted({one.setting for one in rows}) for rows in (transcripts, control))
        if settings != others:
            lists = " and ".join("; ".join(names) for names in (settings, others))
            raise InvalidInput(
                f"the transcripts and the control have the settings {lists}; allowed: the same in both"
            )


_AGAINST_TARGET: Mapping[Finding, str] = {
    Finding.CONSISTENT: "the tokens are consistent with the target model under the settings of the rows",
    Finding.BIASED: "the engine does not emit the target model's law: for its speculation, other kernels, "
    "precision or weights, or settings that the rows do not say; a control arm tells them apart",
    Finding.UNDECIDED: "whether the engine emits the target model's law is undecided",
}
_DIFFERENCE: Mapping[Finding, str] = {
    Finding.CONSISTENT: "no difference between the engine with and without speculation was found",
    Finding.BIASED: "speculation differs from the engine without it",
    Finding.UNDECIDED: "whether speculation differs from the engine without it is undecided",
}
_CONTROL: Mapping[Finding, str] = {
    Finding.CONSISTENT: "without speculation the engine is consistent with the reference model",
    Finding.BIASED: "without speculation, too, the engine differs from the reference model: other kernels, "
    "precision or weights, or settings that the rows do not say",
    Finding.UNDECIDED: "whether the engine without speculation differs from the reference model is undecided",
}


def _summary(findings: Mapping[str, Finding], has_greedy: bool) -> tuple[str, ...]:
    """The verdict in sentences. has_greedy: some rows have temperature 0."""
    greedy = (
        [
            "rows at temperature 0 are no samples: of them it was asked whether every token is the most "
            f"probable one, or as good within {NEAR_TIE:g} of its logit"
        ]
        if has_greedy
        else []
    )
    if "difference" not in findings:
        return _AGAINST_TARGET[findings["transcripts"]], *greedy
    return _DIFFERENCE[findings["difference"]], _CONTROL[findings["control"]], *greedy
