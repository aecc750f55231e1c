"""What people look at today to see whether an engine is right: quality, greedy equality, speed, seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.stats import Interval, ratio
from experiments.gallery.writing import Written
from resispec.models.scoring import Scorer, rescore
from resispec.transcripts import Transcript


def checks(written: Written, greedy: Sequence[Transcript], target: Scorer) -> dict[str, Any]:
    """The columns of an engine. greedy: what the target alone continues the same prompts with."""
    found = perplexity(written.sampled, target)
    return {
        "perplexity": found.value,
        "perplexity_lower": found.lower,
        "perplexity_upper": found.upper,
        "greedy_equal": equal(written.greedy, greedy),
        "greedy_rows": len(greedy),
        "accepted_length": accepted_length(written.sampled),
        "same_seed_equal": equal(written.again, written.sampled),
        "other_seed_equal": equal(written.others, written.sampled),
        "seed_rows": len(written.again),
    }


def perplexity(transcripts: Sequence[Transcript], target: Scorer) -> Interval:
    """Of the output under the target, with an interval over prompts."""
    sums = np.zeros(len(transcripts))
    for (stretch,) in rescore([target], [one.written for one in transcripts]):
        chances = stretch.logits.double().log_softmax(-1).gather(-1, stretch.tokens[:, None])
        sums[stretch.row] -= float(chances.sum())
    found = ratio(sums, [len(one.output_token_ids) for one in transcripts])
    return Interval(math.exp(found.value), math.exp(found.lower), math.exp(found.upper))


def accepted_length(transcripts: Sequence[Transcript]) -> float:
    """Tokens emitted per forward of the target, as the engine says; NaN where it says nothing."""
    records = [one.extra["spec_decode"] for one in transcripts if one.extra.get("spec_decode")]
    accepted = sum(record["num_accepted_draft_tokens"] for record in records)
    forwards = sum(map(_forwards, records))
    return 1 + accepted / forwards if forwards else math.nan


def _forwards(record: Mapping[str, Any]) -> int:
    """Of the target in a request; each emits one token more than it accepts."""
    told = record.get("num_spec_steps")
    return record["completion_tokens"] - record["num_accepted_draft_tokens"] if told is None else told


def equal(transcripts: Sequence[Transcript], others: Sequence[Transcript]) -> int:
    """How many of the first ones have the same output as the other one in their place."""
    pairs = zip(transcripts, others, strict=False)
    return sum(one.output_token_ids == other.output_token_ids for one, other in pairs)
