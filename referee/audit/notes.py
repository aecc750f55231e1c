"""Notes on a report, for readers: hints at rows and settings that can mislead an audit."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from referee.audit.arm import Arm
from referee.audit.comparisons import missing_ends
from referee.audit.statistics import PLACES
from referee.conditions import in_words, names_weights, written_by
from referee.engine_laws import has_penalty
from referee.transcripts import MODEL, PRECISION, WEIGHTS
from resispec.audit.verdict import Finding
from resispec.errors import printable
from resispec.sampling import FILTER_ORDERS

FAR = 0.25
"""The difference of two log-probabilities from which they are far apart; see `terms.NEAR_TIE`."""


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
        if findings[name] is not Finding.NO_BIAS_SEEN and (line := _about_model(side)):
            yield f"{name}: {line}"
    if ends := arm.target.unknown_ends:
        yield (
            f"the end of sequence {' or '.join(map(str, ends))}, which the target's files name, "
            f"counts as none: the target has logits for ids below {arm.target.vocab_size} alone"
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
    yield from written_by(rows)
    if line := missing_ends(arm):
        yield line
    elif ids and not any(row.output_token_ids[-1] in ids for row in rows):
        yield "no row ends with an end-of-sequence token; if the engine emits them, log them"
    if line := _about_reported(arm):
        yield line
    if overruns := [row for row in rows if ids.intersection(row.output_token_ids[:-1])]:
        yield (
            f"{len(overruns)} rows go on after an end-of-sequence token (the first: "
            f"{overruns[0].place}); what an engine appends to fill rows up is not emitted, so cut "
            "it off"
        )
    if arm.is_shared and arm.sharing is not None:
        count_as_few = (
            "each row alone may be right, so many tokens count as few: give every request a seed "
            "of its own, or none"
        )
        if arm.goes_together:
            yield (
                f"rows rise and fall together (z = {arm.sharing.z:.1f}), as one seed for several "
                f"of them makes them, or a bias at some places alone; {count_as_few}"
            )
        else:
            yield (
                f"rows name the seeds of other rows, so their draws may be the same; {count_as_few}"
            )
    unnamed = [row for row in rows if not row.engine]
    if any(not all(map(row.is_as_in, FILTER_ORDERS)) for row in unnamed):
        yield (
            "rows name no engine; their filters were taken in the order of transformers, unless "
            "filter_order says another"
        )
    if any(map(has_penalty, unnamed)):
        yield (
            "rows name no engine; the repetition penalty was taken over prompt and output, "
            "presence and frequency penalties over the output, as in transformers and vLLM: "
            "engines that count other tokens have another law"
        )
    if line := _about_weights(arm):
        yield line


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


def _about_model(arm: Arm) -> str:
    """A line if rows name another model than the target; "" if they do not, or it has no name."""
    own = arm.target.name
    names = (row.extra.get(MODEL) for row in arm.transcripts)
    others = [name for name in names if isinstance(name, str) and not _may_be_same(name, own)]
    if not own or not others:
        return ""
    return (
        f"rows name the model {printable(others[0])[:100]} and the target is {own[:100]}; if these "
        "are not two names of one model, a difference is theirs"
    )


def _may_be_same(name: str, other: str) -> bool:
    """Whether one of two names, hub names or paths, has the last part of the other in it."""
    parts, others = (re.split(r"[/\\]|--", one.casefold().rstrip("/\\")) for one in (name, other))
    return parts[-1] in others or others[-1] in parts


def _about_weights(arm: Arm) -> str:
    """A line if rows name other weights than the target's, in the target's precision."""
    rows = [row for row in arm.transcripts if names_weights(row)]
    rows = [row for row in rows if row.extra[PRECISION] == arm.target.precision]
    others = [row for row in rows if row.extra[WEIGHTS] != arm.target.weights]
    if not others:
        return ""
    return (
        f"{len(others)} rows were written with other weights than the target's, "
        f"{arm.target.weights} (the "
        f"first: {others[0].place}, {others[0].extra[WEIGHTS]}); a difference may be that of the "
        "weights"
    )


def _about_reported(arm: Arm) -> str:
    """A line that compares reported log-probabilities with the target's, for information alone.

    The target's are those of its logits as they are, at temperature 1 without penalties and
    filters; of engines that report the law after them, only rows without settings agree. "" if no
    sampled row has any.
    """
    if arm.terms is None:
        return ""
    rows = [
        (number, row.logprobs)
        for number, row in enumerate(arm.transcripts)
        if row.logprobs is not None and row.temperature > 0
    ]
    if not rows:
        return ""
    chosen = np.isin(arm.terms.row.numpy(), [number for number, _ in rows])
    rescored = -arm.terms.loss.numpy()[chosen]
    reported = np.concatenate([np.array(values) for _, values in rows])
    if not reported.any():
        return (
            f"the log-probabilities of all {len(reported)} tokens are reported as 0, as an engine "
            "writes that does not compute them"
        )
    difference = np.abs(reported - rescored)
    settings = dict.fromkeys(arm.transcripts[number].setting for number, _ in rows)
    after = (
        ""
        if [*settings] == ["T=1"]
        else (
            f"; rescored without the settings ({'; '.join(settings)}), which some engines include"
        )
    )
    return (
        f"log-probabilities that the engine reported, of {len(reported)} tokens, differ from the "
        f"rescored ones by {difference.mean():.2g} on average, and by more than {FAR:g} at "
        f"{np.mean(difference > FAR):.2%} of them{after}"
    )
