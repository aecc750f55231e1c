"""Comparisons of an audit: an arm with the target, or an arm with another one of the same engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from referee.audit.arm import SHOWN, Arm
from referee.audit.statistics import (
    PLACES,
    Sums,
    against_control,
    against_reference,
    rate_difference,
    statistics_of,
)
from referee.audit.terms import NEAR_TIE, EmittedTokens, GreedyGaps, TokenTerms
from referee.transcripts import Transcript
from resispec.audit.verdict import MIN_TOKENS, Statistic

MIN_CLUSTERS = 20
"""Fewest prompts that allow to estimate a variance between them."""
POWER = 0.9
"""Probability with which the smallest bias that is reported would have been found."""


@dataclass(frozen=True)
class Comparison:
    """Measurements of one arm, or between two.

    what: the two that are compared, in words. tokens, rows: of the first. effective: how many independent
    tokens the first arm's count as, at most `tokens`. groups: statistics by their names, for all rows and for
    the settings that have enough tokens. impossible: events that cannot happen and did, a line each. open:
    why the statistics are not to be trusted, a line each; nothing is biased then. without_eos: as `open`, but
    only where `eos` deviates. sensitivity: for kinds of bias, the total variation that one standard error is.
    smallest_share: of rows at temperature 0, the share of tokens which are not greedy that would have been
    found with probability POWER. facts: other lines for a reader. details: numbers alone.
    """

    what: str
    tokens: int
    rows: int
    effective: float
    groups: Mapping[str, Mapping[str, Statistic]]
    impossible: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    without_eos: tuple[str, ...] = ()
    sensitivity: Mapping[str, float] = field(default_factory=dict)
    smallest_share: float | None = None
    facts: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def num_statistics(self) -> int:
        """The number of random statistics, each of which can raise a false alarm."""
        return sum(map(len, self.groups.values()))


def with_target(what: str, arm: Arm) -> list[Comparison]:
    """An arm against the target: its sampled rows, and those at temperature 0."""
    comparisons = []
    if arm.terms is not None:
        comparisons.append(_sampled(f"{what} against the target", arm, arm.terms))
    if arm.gaps is not None:
        comparisons.append(_greedy(f"{what} at temperature 0", arm.gaps, arm.transcripts))
    return comparisons


def with_control(arm: Arm, control: Arm) -> list[Comparison]:
    """An arm against a control arm that has the same settings."""
    comparisons, what = [], "transcripts against the control"
    if arm.terms is not None and control.terms is not None:
        comparisons.append(_difference(what, arm, control))
    if arm.gaps is not None and control.gaps is not None:
        prompts = _prompts((arm, arm.gaps), (control, control.gaps))
        rates = rate_difference(~arm.gaps.is_greedy, ~control.gaps.is_greedy, prompts)
        count, rows = len(arm.gaps.row), len(arm.gaps.row.unique())
        equal = _equal_answers(arm.transcripts, control.transcripts)
        comparisons.append(
            Comparison(
                f"{what}, temperature 0", count, rows, count, {"all": {"not greedy": rates}}, facts=(equal,)
            )
        )
    return comparisons


def _sampled(what: str, arm: Arm, terms: TokenTerms) -> Comparison:
    sums = against_reference(terms, arm.is_shared)
    observed = torch.bincount(terms.bucket, minlength=len(PLACES)).tolist()
    places = [
        {"places": name, "observed": seen, "expected": expected}
        for name, seen, expected in zip(PLACES, observed, terms.chances.sum(0).tolist(), strict=True)
    ]
    return Comparison(
        what,
        len(terms.row),
        len(terms.row.unique()),
        len(terms.row) / _inflation(sums, terms),
        {name: statistics_of(group, arm.is_shared) for name, group in _groups(arm, terms).items()},
        impossible=tuple(arm.ruled_out()),
        without_eos=_eos_lines([arm]),
        sensitivity=_sensitivity(terms, sums),
        details={
            "places": places,
            "edge_tokens": int((terms.is_possible & ~terms.is_inside).sum()),
            "sharing": arm.sharing,
            "is_shared": arm.is_shared,
        },
    )


def _difference(what: str, arm: Arm, control: Arm) -> Comparison:
    is_shared = arm.is_shared or control.is_shared
    sides = [_groups(side, side.terms) for side in (arm, control) if side.terms is not None]
    sums, groups = {}, {}
    for name in (name for name in sides[0] if name in sides[1]):
        terms, other = (side[name] for side in sides)
        prompts = _prompts((arm, terms), (control, other))
        sums[name] = against_control(terms, other, prompts, is_shared)
        out = rate_difference(~terms.is_possible, ~other.is_possible, prompts)
        groups[name] = {**sums[name].statistics(), "ruled out": out}
    terms, other = (side["all"] for side in sides)
    number = len({row.prompt_token_ids for side in (arm, control) for row in side.transcripts})
    few = f"the arms have {number} prompts; at least {MIN_CLUSTERS} are needed to compare them"
    return Comparison(
        what,
        len(terms.row),
        len(terms.row.unique()),
        min(len(terms.row), len(other.row)) / _inflation(sums["all"], terms, other),
        groups,
        open=(few,) if number < MIN_CLUSTERS else (),
        without_eos=_eos_lines([arm, control]),
        sensitivity=_sensitivity(terms, sums["all"]),
    )


def _greedy(what: str, gaps: GreedyGaps, transcripts: Sequence[Transcript]) -> Comparison:
    """Rows at temperature 0 against the target."""
    first = _first_divergences(gaps, transcripts)
    lines = [
        f"{divergence['place']}: output token {divergence['position']} is {divergence['token']}, whose logit "
        f"is {divergence['gap']:.3g} below that of {divergence['best']}; allowed: {NEAR_TIE:g}"
        for divergence in first[:SHOWN]
    ]
    if len(first) > SHOWN:
        lines.append(f"and {len(first) - SHOWN} more rows that diverge")
    count, best, greedy = len(gaps.gap), int((gaps.gap == 0).sum()), int(gaps.is_greedy.sum())
    counts = {"best": best, "near_ties": greedy - best, "not_greedy": count - greedy}
    fact = (
        f"greedy equality: {best} tokens are the best, {greedy - best} as good (logits within {NEAR_TIE}), "
        f"{count - greedy} are neither"
    )
    return Comparison(
        what,
        count,
        len(gaps.row.unique()),
        count,
        {},
        tuple(lines),
        smallest_share=-math.log(1 - POWER) / count,
        facts=(fact,),
        details={"near_tie": NEAR_TIE, **counts, "first_divergences": first},
    )


def _first_divergences(gaps: GreedyGaps, transcripts: Sequence[Transcript]) -> list[dict[str, object]]:
    """The first token of each row that is not greedy; output tokens are counted from 1."""
    first: dict[int, dict[str, object]] = {}
    for index in (~gaps.is_greedy).nonzero()[:, 0].tolist():
        row, position = int(gaps.row[index]), int(gaps.position[index])
        if row not in first:
            first[row] = {
                "place": transcripts[row].place,
                "position": position + 1,
                "token": transcripts[row].output_token_ids[position],
                "best": int(gaps.best[index]),
                "gap": float(gaps.gap[index]),
            }
    return list(first.values())


def _sensitivity(terms: TokenTerms, sums: Sums) -> dict[str, float]:
    """For kinds of bias in these terms, the total variation that moves its statistic by one standard error.

    A change of temperature: p becomes p (1 + e (s - H)) with s the surprisal and H its mean, which moves by e
    times its variance; the total variation is e E|s - H| / 2. A shift to the draft: p becomes p + l (q - p);
    the total variation is what the event q > p gains.
    """
    per_token = float(terms.surprisal_variance.mean())
    share = float(terms.spread.mean()) / per_token if per_token > 0 else 0.0
    kinds = {"another temperature": math.sqrt(sums.variance_of("surprisal")) * share}
    if "overdraft" in terms.names:
        kinds["a shift to the draft"] = math.sqrt(sums.variance_of("overdraft"))
    return {kind: size for kind, size in kinds.items() if size > 0}


def _prompts(*sides: tuple[Arm, EmittedTokens]) -> Tensor:
    """The prompt that every token of two arms continues, by a number, (N + M,) int64."""
    known: dict[tuple[int, ...], int] = {}
    numbers = []
    for arm, tokens in sides:
        rows = [known.setdefault(row.prompt_token_ids, len(known)) for row in arm.transcripts]
        numbers.append(torch.tensor(rows)[tokens.row])
    return torch.cat(numbers)


def _equal_answers(transcripts: Sequence[Transcript], control: Sequence[Transcript]) -> str:
    """The number of greedy rows with the control's tokens, in words."""
    answers = {(row.prompt_token_ids, row.setting): row.output_token_ids for row in control}
    pairs = [
        (row.output_token_ids, answers[row.prompt_token_ids, row.setting])
        for row in transcripts
        if row.temperature == 0 and (row.prompt_token_ids, row.setting) in answers
    ]
    return f"{sum(own == other for own, other in pairs)} of {len(pairs)} rows have the control's tokens"


def _groups(arm: Arm, terms: TokenTerms) -> dict[str, TokenTerms]:
    """All tokens, and those of every setting that has enough of them, where these are not all."""
    parts = {name: terms.where(rows[terms.row]) for name, rows in arm.settings(MIN_TOKENS).items()}
    return {"all": terms} | {name: part for name, part in parts.items() if len(part.row) < len(terms.row)}


def _inflation(sums: Sums, *arms: TokenTerms) -> float:
    """The surprisal's variance over that of as many independent tokens, at least 1."""
    independent = sum(float(terms.surprisal_variance.sum()) / len(terms.row) ** 2 for terms in arms)
    return max(1.0, sums.variance_of("surprisal") / independent) if independent > 0 else 1.0


def _eos_lines(arms: Sequence[Arm]) -> tuple[str, ...]:
    lacking = [places for arm in arms if (places := arm.without_eos)]
    return tuple(
        f"{len(places)} rows did not end by a limit and none of them has an end-of-sequence token (the "
        f"first: {places[0]}): it was left out of the transcripts or is never emitted; without it no "
        "statistic can be trusted, so log every token"
        for places in lacking
    )
