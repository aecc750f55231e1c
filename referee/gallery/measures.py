"""Measures of an engine: the transcripts that it writes, their usual checks, and the audit."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from referee.audit import Arm, Statistic, audit_arms
from referee.audit.statistics import normal_z
from referee.conditions import by_condition
from referee.engines import Engine, write_transcripts
from referee.gallery.exhibits import Exhibit, Gallery
from referee.transcripts import Transcript
from resispec.sampling import Sampling

OTHER_SEED = 1000
"""The number added to the first seed if other seeds are asked for."""
FIRST_TOKENS = 50
PER_DECADE = 5
"""The number of points of a curve from one number of tokens to ten times as many."""
NUM_RESAMPLES = 10_000


def write(
    engine: Engine,
    exhibit: Exhibit,
    gallery: Gallery,
    prompts: Sequence[tuple[int, ...]],
    folder: Path,
) -> dict[str, list[Transcript]]:
    """Let an exhibit's engine write the answers that its files lack.

    Raises like `write_transcripts`.

    Returns the sampled answers, the greedy ones, and those sampled again with the same and with
    other seeds.
    """
    prompts = [*prompts] * exhibit.times  # each time with other seeds
    sampled = Sampling(max_new_tokens=gallery.tokens, **exhibit.settings)
    greedy, first = replace(sampled, temperature=0.0), exhibit.first_seed

    def written(end: str, number: int | None, settings: Sampling, seed: int) -> list[Transcript]:
        path = folder / f"{exhibit.stem}{end}.jsonl"
        return write_transcripts(
            engine, prompts[:number], settings, path, seed, exhibit.concurrency
        )

    return {
        "sampled": written("", None, sampled, first),
        "greedy": written(".greedy", gallery.greedy, greedy, 0),
        "again": written(".again", gallery.seeds, sampled, first),
        "others": written(".others", gallery.seeds, sampled, first + OTHER_SEED),
    }


def checks(
    answers: Mapping[str, list[Transcript]], greedy: Sequence[Transcript], sampled_arm: Arm
) -> dict[str, Any]:
    """The usual checks of an engine.

    greedy: continuations of the same prompts by the target alone.
    """
    sampled, again = answers["sampled"], answers["again"]
    value, lower, upper = perplexity(sampled_arm)
    return {
        "perplexity": value,
        "perplexity_lower": lower,
        "perplexity_upper": upper,
        "greedy_equal": equal(answers["greedy"], greedy),
        "greedy_rows": len(answers["greedy"]),
        "accepted_length": accepted_length(sampled),
        "same_seed_equal": equal(again, sampled),
        "other_seed_equal": equal(answers["others"], sampled),
        "seed_rows": len(again),
    }


def perplexity(arm: Arm) -> tuple[float, float, float]:
    """Perplexity of sampled output under the target; its 95 % bootstrap interval over prompts."""
    assert arm.terms is not None  # every engine samples
    rows, losses = arm.terms.row.numpy(), arm.terms.loss.numpy()
    sums, lengths = np.bincount(rows, losses), np.bincount(rows)
    weights = np.full(len(sums), 1 / len(sums))
    counts = (
        np.random.default_rng(0)
        .multinomial(len(sums), weights, size=NUM_RESAMPLES)
        .astype(np.float64)
    )
    lower, upper = np.quantile((counts @ sums) / (counts @ lengths), [0.025, 0.975])
    return math.exp(float(sums.sum() / lengths.sum())), math.exp(lower), math.exp(upper)


def accepted_length(transcripts: Sequence[Transcript]) -> float:
    """Tokens emitted per forward of the target, by the engine's counts; NaN if it reports none."""
    accepted = forwards = 0
    for row in transcripts:
        if record := row.extra.get("spec_decode"):
            number = record["num_accepted_draft_tokens"]
            accepted += number
            # Each forward emits one token more than it accepts.
            forwards += record.get("num_spec_steps", record.get("completion_tokens", 0) - number)
    return 1 + accepted / forwards if forwards else math.nan


def equal(transcripts: Sequence[Transcript], others: Sequence[Transcript]) -> int:
    """The number of rows with the output of the other row of their prompt and load.

    transcripts, others: rows of the same prompts from the first on, for each load. others: without
    a load they stand for any.
    """
    counterparts = by_condition(others)
    count = 0
    for condition, numbers in by_condition(transcripts).items():
        of_any_load = counterparts.get(condition._replace(concurrency=None), [])
        pairs = zip(numbers, counterparts.get(condition, of_any_load), strict=False)
        count += sum(
            transcripts[row].output_token_ids == others[other].output_token_ids
            for row, other in pairs
        )
    return count


def verdict(arm: Arm, control: Arm | None) -> dict[str, Any]:
    """The audit of all tokens of an engine, and of its difference from a control arm if given."""
    report = audit_arms(arm)
    judgement = report.judgements[0]
    columns = {} if control is None else {"against_control": str(audit_arms(arm, control).finding)}
    bets = [
        (took, wealth.winner)
        for wealth in (one.wealth for one in arm.by_condition.values())
        if wealth is not None and (took := wealth.took(report.e_limit)) is not None
    ]
    tokens, bet = min(bets, default=(math.nan, ""))
    return columns | {
        "bet_tokens": tokens,
        "bet": bet,
        "edge_tokens": sum(
            one.comparison.details.get("edge_tokens", 0) for one in report.judgements
        ),
        "verdict": str(report.finding),
        "reason": judgement.reasons[0],
        "shares_random_numbers": arm.is_shared,
        "limit": report.limit,
        "allowed_z": report.allowed_z,
        "smallest_temperature": judgement.smallest_bias.get("another temperature"),
        "smallest_draft": judgement.smallest_bias.get("a shift to the draft"),
    }


def points(num_tokens: int) -> list[int]:
    """Numbers of tokens: a geometric series from FIRST_TOKENS on, with `num_tokens` as the last."""
    series = (round(FIRST_TOKENS * 10 ** (power / PER_DECADE)) for power in count())
    return [*takewhile(lambda number: number < 0.9 * num_tokens, series), num_tokens]


def curve(arm: Arm) -> Iterator[dict[str, Any]]:
    """The statistic farthest out for each number of tokens; of several loads, under the largest."""
    *_, arm = arm.by_condition.values()
    for num_tokens in points(arm.num_tokens):
        if statistics := arm.statistics(num_tokens):
            name = farthest(statistics)
            statistic = statistics[name]
            chances = {
                "z": statistic.z,
                "p_value": statistic.p_value,
                "normal_z": normal_z(statistic),
            }
            yield {"tokens": num_tokens, "statistic": name, **chances}


def farthest(statistics: Mapping[str, Statistic]) -> str:
    """The name of the statistic with the least p-value."""
    return max(statistics, key=lambda name: normal_z(statistics[name]))
