"""The comparisons of an audit: an arm with the target, or an arm with another one of the same engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from resispec.audit.transcripts.arms import Arm
from resispec.audit.transcripts.greedy import NEAR_TIE, greedy_control, greedy_reference
from resispec.audit.transcripts.judging import MIN_CLUSTERS, Comparison, sensitivity
from resispec.audit.transcripts.statistics import (
    PLACES,
    Sums,
    against_control,
    against_reference,
    omnibus,
    rate_difference,
)
from resispec.audit.transcripts.terms import Terms
from resispec.audit.verdict import MIN_TOKENS


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
    found = []
    if arm.terms is not None and control.terms is not None:
        found.append(_difference(arm, arm.terms, control, control.terms))
    if arm.gaps is not None and control.gaps is not None:
        found.append(greedy_control("transcripts against the control, temperature 0", arm.gaps, control.gaps))
    return found


def _sampled(what: str, arm: Arm, terms: Terms) -> Comparison:
    every = against_reference(terms, arm.is_shared)
    groups = {
        name: against_reference(chosen, arm.is_shared).statistics()
        | ({} if arm.is_shared else omnibus(chosen))
        for name, chosen in _groups(arm, terms).items()
    }
    return Comparison(
        what,
        len(terms.row),
        len(terms.row.unique()),
        len(terms.row) / _inflation(every, terms),
        groups,
        impossible=tuple(arm.impossible(terms)),
        without_eos=_eos_lines([arm]),
        sensitivity=sensitivity(terms, every),
        details={
            "places": _places(terms),
            "edge_tokens": int(((terms.below > 0) & (terms.below <= NEAR_TIE)).sum()),
            "sharing": arm.sharing,
            "is_shared": arm.is_shared,
        },
    )


def _difference(arm: Arm, terms: Terms, control: Arm, other: Terms) -> Comparison:
    is_shared = arm.is_shared or control.is_shared
    prompts: dict[tuple[int, ...], int] = {}
    of_rows = [
        torch.tensor([prompts.setdefault(one.prompt_token_ids, len(prompts)) for one in side.transcripts])
        for side in (arm, control)
    ]
    sums, others = {}, _groups(control, other)
    for name, chosen in _groups(arm, terms).items():
        if name in others:
            labels = torch.cat((of_rows[0][chosen.row], of_rows[1][others[name].row]))
            sums[name] = against_control(chosen, others[name], labels, is_shared)
    groups = {name: found.statistics() for name, found in sums.items()}
    far = [(int((side.below > NEAR_TIE).sum()), len(side.row)) for side in (terms, other)]
    groups["all"]["ruled out"] = rate_difference(*far[0], *far[1])
    few = (
        [f"the arms have {len(prompts)} prompts; at least {MIN_CLUSTERS} are needed to compare them"]
        if len(prompts) < MIN_CLUSTERS
        else []
    )
    return Comparison(
        "transcripts against the control",
        len(terms.row),
        len(terms.row.unique()),
        min(len(terms.row), len(other.row)) / _inflation(sums["all"], terms, other),
        groups,
        open=tuple(few),
        without_eos=_eos_lines([arm, control]),
        sensitivity=sensitivity(terms, sums["all"]),
    )


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
