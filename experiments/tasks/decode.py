"""Decode every prompt: accepted lengths, times, and with an audit statistics of emitted tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments.tasks.base import Row, Task, Workload, hash_tokens, identity, share
from resispec.audit.z_score import Terms, join, step_terms


@dataclass(frozen=True)
class PromptRow(Row):
    """One decoded prompt.

    num_returned: tokens of the answer. num_emitted: tokens of all `num_steps` steps, those past the
    limit included. histogram[k]: number of steps that emitted k + 1 tokens. Times are in seconds.
    tokens: ids of the returned tokens. step_emitted, step_s: tokens and seconds of every step in
    order; an audit's times do not count. num_drafted: tokens that the target verified in all steps.
    Old rows lack these four.

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
    tokens: list[int] | None = field(default=None, kw_only=True)
    step_emitted: list[int] | None = field(default=None, kw_only=True)
    num_drafted: int | None = field(default=None, kw_only=True)
    step_s: list[float] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        emitted = sum(size * count for size, count in enumerate(self.histogram, start=1))
        is_consistent = (sum(self.histogram), emitted) == (self.num_steps, self.num_emitted)
        if not is_consistent or self.num_steps < 1 or not 0 < self.decode_s < math.inf:
            raise ValueError(f"no decoded prompt: {self}")


@dataclass(frozen=True)
class AuditRow(PromptRow):
    """One audited prompt: a row whose times do not count, and statistics of the returned tokens.

    surprisal, overdraft, rank: a term of each statistic for every returned token (see
    `resispec.audit.z_score`), and the term's variance. An overdraft is None if the draft's law is
    not known, and a surprisal if it is infinite, of a token to which the target gives no mass.
    """

    surprisal: list[float | None]
    surprisal_variance: list[float]
    overdraft: list[float | None]
    overdraft_variance: list[float | None]
    rank: list[float]
    rank_variance: list[float]


@dataclass(frozen=True)
class Decode(Task):
    """Task that decodes every prompt.

    audit: record statistics of the tokens; then times do not count.
    """

    audit: bool = False

    @property
    def row(self) -> type[PromptRow]:
        """The dataclass of its rows."""
        return AuditRow if self.audit else PromptRow

    def __call__(self, workload: Workload, index: int) -> PromptRow:
        """See `Task`."""
        prompt = workload.prompts[index][1]
        generator = workload.generator(index)
        terms = list[Terms]()
        on_step = (lambda step: terms.append(step_terms(step))) if self.audit else None
        generation = workload.decoder.generate(
            workload.pair, prompt, workload.sampling, generator, on_step, is_checked=self.audit
        )
        emitted, tokens = generation.num_emitted, generation.tokens
        return self.row(
            **identity(workload, index),
            num_returned=len(tokens),
            num_emitted=sum(emitted),
            num_steps=len(emitted),
            histogram=[emitted.count(size) for size in range(1, max(emitted) + 1)],
            stop_reason=generation.stop_reason,
            prefill_s=generation.prefill_s,
            decode_s=generation.decode_s,
            tokens_sha256=hash_tokens(tokens),
            tokens=list(tokens),
            step_emitted=list(emitted),
            num_drafted=generation.num_drafted,
            step_s=None if self.audit else [round(seconds, 7) for seconds in generation.step_s],
            **(_statistics(terms, len(tokens)) if self.audit else {}),
        )

    def progress(self, rows: Sequence[PromptRow]) -> dict[str, str]:
        """The accepted length over all rows."""
        emitted, steps = sum(row.num_emitted for row in rows), sum(row.num_steps for row in rows)
        return {"accepted_length": share(emitted, steps, ".2f")}


def _statistics(terms: list[Terms], num_tokens: int) -> dict[str, list[float | None]]:
    """The fields of `AuditRow` for the first `num_tokens` tokens; None for what is not finite.

    Raises FloatingPointError for a NaN law.
    """
    joined = join(terms, num_tokens)
    joined.scores()
    return {
        name: [value if math.isfinite(value) else None for value in values.tolist()]
        for name, values in joined._asdict().items()
    }
