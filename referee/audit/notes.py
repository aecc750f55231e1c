"""Notes on a report, for readers: hints at rows and settings that can mislead an audit."""

from collections import Counter
from collections.abc import Iterator, Mapping

from referee.audit.arm import Arm
from referee.audit.reported import about_reported
from referee.audit.statistics import PLACES
from referee.conditions import in_words
from resispec.audit.verdict import Finding


def notes(arm: Arm, control: Arm | None, findings: Mapping[str, Finding]) -> Iterator[str]:
    """The notes on a report, a line each.

    findings: those of the arms against the target, by the arm.
    """
    arms = {"transcripts": arm} if control is None else {"transcripts": arm, "control": control}
    for name, side in arms.items():
        parts = side.by_condition
        for condition, part in parts.items():
            settings = _about_settings(part) if findings[name] is not Finding.NO_BIAS_SEEN else ()
            yield from (
                f"{in_words(condition, list(parts), name)}: {line}"
                for line in (*_about_rows(part), *settings)
            )
    if control is not None:
        prompts, others = (
            {row.prompt_token_ids for row in side.transcripts if row.turn in (None, 1)}
            for side in (arm, control)
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
    if line := about_reported(arm):
        yield line
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
