"""Decode every prompt: accepted lengths and times, and with an audit the statistics of the emitted tokens."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.tasks.base import Row, Workload, identity, share
from resispec.audit.z_score import Terms, join, step_terms
from resispec.decode import Generation


@dataclass(frozen=True)
class PromptRow(Row):
    """One decoded prompt.

    num_returned: tokens that were asked for. num_emitted: tokens of all `num_steps` steps, those past the
    limit included. histogram[k]: steps that emitted k + 1 tokens. Times in seconds.

    Raises ValueError when the counts contradict each other or nothing was decoded.
    """

    num_returned: int
    num_emitted: int
    num_steps: int
    histogram: list[int]
    stop_reason: str
    prefill_s: float
    decode_s: float
    tokens_sha256: str

    def __post_init__(self) -> None:
        emitted = sum(size * count for size, count in enumerate(self.histogram, start=1))
        if self.num_steps < 1 or sum(self.histogram) != self.num_steps or emitted != self.num_emitted:
            raise ValueError(
                f"{self.num_steps} steps and {self.num_emitted} emitted tokens; the histogram says "
                f"{sum(self.histogram)} and {emitted}"
            )
        if not 0 < self.decode_s < math.inf:
            raise ValueError(f"decode_s is {self.decode_s}; allowed: positive seconds")


@dataclass(frozen=True)
class AuditRow(PromptRow):
    """One audited prompt: a decoded row whose times do not count, and statistics of the returned tokens.

    surprisal, overdraft, rank: a term of each statistic for every returned token (see
    `resispec.audit.z_score`), and the term's variance; None where the draft's law is not known.
    """

    surprisal: list[float]
    surprisal_variance: list[float]
    overdraft: list[float | None]
    overdraft_variance: list[float | None]
    rank: list[float]
    rank_variance: list[float]


@dataclass(frozen=True)
class Decode:
    """Decode every prompt.

    audit: record the statistics of the same tokens; then times do not count.
    """

    audit: bool = False

    @property
    def row(self) -> type[PromptRow]:
        """The dataclass of its rows."""
        return AuditRow if self.audit else PromptRow

    def __call__(self, workload: Workload, index: int) -> PromptRow:
        """See `Task`."""
        tokens, observed = workload.prompts[index][1], list[Terms]()
        on_step = (lambda step: observed.append(step_terms(step))) if self.audit else None
        generator = workload.generator(index)
        generation = workload.decoder.generate(
            workload.pair, tokens, workload.sampling, generator, on_step=on_step
        )
        found = identity(workload, index) | _counts(generation)
        return self.row(**found, **(_statistics(observed, len(generation.tokens)) if self.audit else {}))

    def progress(self, rows: Sequence[PromptRow]) -> dict[str, str]:
        """The accepted length over all rows."""
        emitted, steps = sum(row.num_emitted for row in rows), sum(row.num_steps for row in rows)
        return {"accepted_length": share(emitted, steps, ".2f")}


def _counts(generation: Generation) -> dict[str, Any]:
    """The fields of `PromptRow` that say what was decoded."""
    counts = generation.num_emitted
    return {
        "num_returned": len(generation.tokens),
        "num_emitted": sum(counts),
        "num_steps": len(counts),
        "histogram": [counts.count(emitted) for emitted in range(1, max(counts) + 1)],
        "stop_reason": generation.stop_reason,
        "prefill_s": generation.prefill_s,
        "decode_s": generation.decode_s,
        "tokens_sha256": hash_tokens(generation.tokens),
    }


def _statistics(observed: list[Terms], num_tokens: int) -> dict[str, list[float | None]]:
    """The fields of `AuditRow`, of the first `num_tokens` tokens; NaN becomes None, since JSON has no NaN."""
    return {
        name: [None if value != value else value for value in values.tolist()]
        for name, values in join(observed, num_tokens)._asdict().items()
    }


def hash_tokens(tokens: Sequence[int]) -> str:
    """The first 16 hex digits of the SHA-256 of token ids as comma-separated decimals."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:16]
