"""The comparisons of an audit: an arm with the target, or an arm with another one of the same engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from resispec.audit.transcripts.arms import Arm
from resispec.audit.transcripts.greedy import greedy_control, greedy_reference
from resispec.audit.transcripts.judging import MIN_CLUSTERS, Comparison, sensitivity
from resispec.audit.transcripts.statistics import (
    PLACES,
    Sums,
    against_control,
    against_reference,
    rate_difference,
    statistics_of,
)
from resispec.audit.transcripts.terms import Terms, Tokens
from resispec.audit.verdict import MIN_TOKENS
from resispec.transcripts import Transcript


def with_target(what: str, arm: Arm) -> list[Comparison]:
    """What an arm says about the target: of the sampled rows, and of those at temperature 0."""
    found = []
    if arm.terms is not None:
        found.append(_sampled(f"{what} against the target", arm, arm.terms))
    if arm.gaps is not None:
        found.append(greedy_reference(f"{what} at temperature 0", arm.gaps, arm.transcripts))
    return found


def with_control(arm: Arm, control: Arm) -> list[Comparison]:
    """What an arm says about a control arm that has the same settings."""
    found, what = [], "transcripts against the control"
    if arm.terms is not None and control.terms is not None:
        found.append(_difference(what, arm, control))
    if arm.gaps is not None and control.gaps is not None:
        prompts = _prompts((arm, arm.gaps), (control, control.gaps))
        same = _same_answers(arm.transcripts, control.transcripts)
        found.append(greedy_control(f"{what}, temperature 0", arm.gaps, control.gaps, prompts, same))
    return found


def _sampled(what: str, arm: Arm, terms: Terms) -> Comparison:
    every = against_reference(terms, arm.is_shared)
    return Comparison(
        what,
        len(terms.row),
        len(terms.row.unique()),
        len(terms.row) / _inflation(every, terms),
        {name: statistics_of(chosen, arm.is_shared) for name, chosen in _groups(arm, terms).items()},
        impossible=tuple(arm.ruled_out()),
        without_eos=_eos_lines([arm]),
        sensitivity=sensitivity(terms, every),
        details={
            "places": _places(terms),
            "edge_tokens": int((terms.is_possible & ~terms.is_inside).sum()),
            "sharing": arm.sharing,
            "is_shared": arm.is_shared,
        },
    )


def _difference(what: str, arm: Arm, control: Arm) -> Comparison:
    is_shared = arm.is_shared or control.is_shared
    sides = [_groups(one, one.terms) for one in (arm, control) if one.terms is not None]
    sums, groups = {}, {}
    for name in (name for name in sides[0] if name in sides[1]):
        terms, other = (side[name] for side in sides)
        prompts = _prompts((arm, terms), (control, other))
        sums[name] = against_control(terms, other, prompts, is_shared)
        out = rate_difference(~terms.is_possible, ~other.is_possible, prompts)
        groups[name] = {**sums[name].statistics(), "ruled out": out}
    terms, other = (side["all"] for side in sides)
    number = len({one.prompt_token_ids for side in (arm, control) for one in side.transcripts})
    few = f"the arms have {number} prompts; at least {MIN_CLUSTERS} are needed to compare them"
    return Comparison(
        what,
        len(terms.row),
        len(terms.row.unique()),
        min(len(terms.row), len(other.row)) / _inflation(sums["all"], terms, other),
        groups,
        open=(few,) if number < MIN_CLUSTERS else (),
        without_eos=_eos_lines([arm, control]),
        sensitivity=sensitivity(terms, sums["all"]),
    )


def _prompts(*sides: tuple[Arm, Tokens]) -> Tensor:
    """Which prompt every token of two arms continues, (N + M,) int64."""
    known: dict[tuple[int, ...], int] = {}
    found = []
    for arm, tokens in sides:
        rows = [known.setdefault(one.prompt_token_ids, len(known)) for one in arm.transcripts]
        found.append(torch.tensor(rows)[tokens.row])
    return torch.cat(found)


def _same_answers(transcripts: Sequence[Transcript], control: Sequence[Transcript]) -> str:
    """How many greedy rows have the control's tokens, in words."""
    answers = {(one.prompt_token_ids, one.setting): one.output_token_ids for one in control}
    pairs = [
        (one.output_token_ids, answers[one.prompt_token_ids, one.setting])
        for one in transcripts
        if one.temperature == 0 and (one.prompt_token_ids, one.setting) in answers
    ]
    return f"{sum(own == other for own, other in pairs)} of {len(pairs)} rows have the control's tokens"


def _groups(arm: Arm, terms: Terms) -> dict[str, Terms]:
    """All tokens, and those of every setting that has enough of them, where these are not all."""
    own = {name: terms.where(rows[terms.row]) for name, rows in arm.settings(MIN_TOKENS).items()}
    return {"all": terms, **{name: one for name, one in own.items() if len(one.row) < len(terms.row)}}


def _inflation(sums: Sums, *arms: Terms) -> float:
    """By how much more the surprisal varies than in as many independent tokens."""
    independent = 0.0
    for terms in arms:
        variances = terms.sums[:, terms.names.index("surprisal"), 1]
        independent += float(variances.sum()) / len(variances) ** 2
    return max(1.0, sums.variance_of("surprisal") / independent) if independent > 0 else 1.0


def _eos_lines(arms: Sequence[Arm]) -> tuple[str, ...]:
    lacking = [places for arm in arms if (places := arm.without_eos)]
    return tuple(
        f"{len(places)} rows did not end by a limit and none of them has an end-of-sequence token (the "
        f"first: {places[0]}): it was left out of the transcripts or is never emitted; without it no "
        "statistic can be trusted, so log every token"
        for places in lacking
    )


def _places(terms: Terms) -> list[dict[str, object]]:
    """How many tokens came from every bucket, and how many the target expects."""
    observed = torch.bincount(terms.bucket, minlength=len(PLACES)).tolist()
    return [
        {"places": name, "observed": seen, "expected": expected}
        for name, seen, expected in zip(PLACES, observed, terms.chances.sum(0).tolist(), strict=True)
    ]
