"""What a reader should know besides a verdict: what the numbers suggest, and what was not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from resispec.audit.transcripts.arms import Arm
from resispec.audit.transcripts.judging import Finding
from resispec.audit.transcripts.statistics import PLACES
from resispec.audit.transcripts.terms import Terms
from resispec.transcripts import SWITCHES

LEAST_MISSED = 10.0
"""So many tokens must have been expected beyond a place before their absence is worth a word."""


def notes(arm: Arm, control: Arm | None, findings: Mapping[str, Finding]) -> Iterator[str]:
    """The notes on a report, a line each. findings: of the arms against the target, by their names."""
    arms = {"transcripts": arm} if control is None else {"transcripts": arm, "control": control}
    for name, one in arms.items():
        found = [*_about_file(one), *_about_draws(one)]
        if findings[name] is not Finding.CONSISTENT:
            found += _about_settings(one)
        yield from (f"{name}: {note}" for note in found)
    if control is not None:
        prompts, others = ({one.prompt_token_ids for one in side.transcripts} for side in (arm, control))
        if apart := len(prompts ^ others):
            yield f"{apart} prompts are in one arm alone; with the same in both, less differs by chance"


def _about_file(arm: Arm) -> Iterator[str]:
    rows = arm.transcripts
    engines = Counter(f"{one.engine} {one.engine_version or ''}".strip() for one in rows if one.engine)
    if engines:
        yield "written by " + ", ".join(f"{engine} ({count} rows)" for engine, count in engines.items())
    for key in sorted({key for one in rows for key in one.extra}):
        if near := get_close_matches(key, SWITCHES, n=1):
            yield f"the rows' key {key!r} is not read; did you mean {near[0]}?"


def _about_draws(arm: Arm) -> Iterator[str]:
    ids = arm.target.eos_token_ids
    if ids and not any(one.output_token_ids[-1] in ids for one in arm.transcripts):
        yield "no row ends with an end-of-sequence token; if the engine emits them, log them"
    goes_on = [one for one in arm.transcripts if any(token in ids for token in one.output_token_ids[:-1])]
    if goes_on:
        yield (
            f"{len(goes_on)} rows go on after an end-of-sequence token (the first: {goes_on[0].place}); what "
            "an engine appends to fill rows up is not emitted, so cut it off"
        )
    if arm.is_shared and arm.sharing is not None:
        yield (
            f"rows share their random numbers (z = {arm.sharing.z:.1f}), as one seed for several of them "
            "makes them; each row alone may be right, so this is no bias, but many tokens count as few: give "
            "every request a seed of its own, or none"
        )


def _about_settings(arm: Arm) -> Iterator[str]:
    """What may be set in the engine and is not in the rows."""
    given = ", ".join(
        f"{name}={value:g}"
        for name, value in arm.target.defaults.items()
        if any(getattr(one, name) != value for one in arm.transcripts)
    )
    if given:
        yield (
            f"the target's generation_config.json says {given}, and not every row does; engines like vLLM "
            "apply it to requests that say nothing"
        )
    if arm.terms is not None:
        yield from _about_tail(arm.terms)


def _about_tail(terms: Terms) -> Iterator[str]:
    expected, observed = terms.chances.sum(0).tolist(), terms.bucket.bincount(minlength=len(PLACES))
    last = int(observed.nonzero().max())
    if (missed := sum(expected[last + 1 :])) >= LEAST_MISSED:
        yield (
            f"no token came from beyond {PLACES[last]} by probability, where {missed:.1f} were expected; are "
            "top_k, top_p or min_p on and not declared?"
        )
