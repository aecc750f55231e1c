"""Per-request acceptance of speculative decoding, in the engine-neutral record of NVIDIA's AIPerf.

The fields and their meaning are those of `SpecDecodeAcceptanceRecord` in ai-dynamo/aiperf,
src/aiperf/common/models/spec_decode_models.py (commit 0786f0ca7116427792e7feb5b97834bd1f0b0243, 2026). It
counts draft tokens without the bonus token that every verified step adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PER_STEP = ("per_step_accepted", "per_step_drafted")
"""What an engine may tell of every verified step, in their order."""


def acceptance_record(
    engine: str,
    histogram: Sequence[int],
    num_draft_tokens: int,
    num_spec_tokens: int | None = None,
    completion_tokens: int | None = None,
    per_step: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Any] | None:
    """The record of one request; None when the numbers contradict each other, which none of AIPerf's may.

    engine: AIPerf's name of it. histogram: entry j counts the verified steps that accepted j draft tokens.
    num_draft_tokens: how many were proposed. num_spec_tokens: the most that a step may propose, None where
    there is no such limit. completion_tokens: tokens of the answer. per_step: by the names in PER_STEP.
    """
    steps = sum(histogram)
    accepted = sum(number * count for number, count in enumerate(histogram))
    if accepted > num_draft_tokens or any(count < 0 for count in histogram):
        return None
    optional = {
        "num_spec_tokens": num_spec_tokens,
        "completion_tokens": completion_tokens,
        **(per_step or {}),
    }
    return {
        "engine": engine,
        "mean_acceptance_length": 1 + accepted / max(1, steps),
        "draft_acceptance_rate": accepted / max(1, num_draft_tokens),
        # JSON's keys are text; a count of no steps is left out
        "acceptance_histogram": {str(number): count for number, count in enumerate(histogram) if count},
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": num_draft_tokens,
        "num_spec_steps": steps,
        **{name: value for name, value in optional.items() if value is not None},
    }
