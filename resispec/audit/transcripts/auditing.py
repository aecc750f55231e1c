"""The audit of transcripts: rescore them, compare, judge, and say what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from resispec.audit.transcripts.arms import Arm, check_rows, measure
from resispec.audit.transcripts.chances import z_of
from resispec.audit.transcripts.comparing import with_control, with_target
from resispec.audit.transcripts.judging import Finding, Judgement, judge, limit_of, overall
from resispec.audit.transcripts.notes import notes
from resispec.audit.transcripts.terms import NEAR_TIE
from resispec.errors import InvalidInput
from resispec.models.scoring import Scorer
from resispec.transcripts import Transcript


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

    @property
    def allowed_z(self) -> float:
        """How far out a normal statistic may be."""
        return z_of(self.limit)


def audit_transcripts(
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
    rows = [transcripts] if control is None else [transcripts, control]
    for one in rows:  # before the first is rescored, which takes long
        check_rows(one, [target] if draft is None else [target, draft])
    settings = [sorted({one.setting for one in arm}) for arm in rows]
    if settings[0] != settings[-1]:
        lists = " and ".join("; ".join(names) for names in settings)
        raise InvalidInput(
            f"the transcripts and the control have the settings {lists}; allowed: the same in both"
        )
    return audit_arms(*(measure(one, target, draft, on_tokens) for one in rows))


def audit_arms(arm: Arm, control: Arm | None = None) -> Report:
    """The audit of transcripts that are rescored already; control: under the same settings."""
    groups = {"transcripts": with_target("transcripts", arm)}
    if control is not None:
        difference, own = with_control(arm, control), with_target("control", control)
        groups = {"difference": difference, **groups, "control": own}
    limit = limit_of([one for group in groups.values() for one in group])
    judged = {name: [judge(one, limit) for one in group] for name, group in groups.items()}
    findings = {name: overall([one.finding for one in group]) for name, group in judged.items()}
    finding, sentences = _verdict(findings)
    return Report(
        finding,
        sentences if arm.gaps is None else (*sentences, _GREEDY),
        tuple(one for group in judged.values() for one in group),
        tuple(notes(arm, control, findings)),
        limit,
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
_ALONE = (
    "the transcripts deviate from the target and the control was not found to, but the difference of the "
    "two can still be chance; more tokens decide whether it is the speculation"
)
_GREEDY = (
    "rows at temperature 0 are no samples: of them it was asked whether every token is the most probable "
    f"one, or as good within {NEAR_TIE:g} of its logit"
)


def _verdict(findings: Mapping[str, Finding]) -> tuple[Finding, tuple[str, ...]]:
    """The audit's finding, and what it means in sentences. findings: of the comparisons by their names."""
    own = findings["transcripts"]
    if "difference" not in findings:
        return own, (_AGAINST_TARGET[own],)
    difference, control = findings["difference"], findings["control"]
    if own is Finding.BIASED and Finding.BIASED not in (difference, control):
        return Finding.UNDECIDED, (_ALONE, _CONTROL[control])
    return difference, (_DIFFERENCE[difference], _CONTROL[control])
