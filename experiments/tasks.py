"""What a cell does with each of its prompts: a task turns one prompt into one row, and conf/task/ chooses it.

Rows are one prompt's each, so that every kind of measurement is resumed, bootstrapped and compared alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from resispec.audit.z_score import Terms, cut, join, step_terms
from resispec.decode import Decoder, Sampling
from resispec.models import Pair
from resispec.record import AuditRow, PromptRow


@dataclass(frozen=True)
class Context:
    """What a cell works with. prompts: (id, token ids) in order; prompt i uses seed + i for every random stream."""

    pair: Pair
    decoder: Decoder
    sampling: Sampling
    prompts: Sequence[tuple[str, list[int]]]
    seed: int

    def generator(self, index: int) -> torch.Generator:
        """The only source of randomness of a prompt."""
        return torch.Generator(self.pair.target.device).manual_seed(self.seed + index)


class Task(Protocol):
    """Measures one prompt."""

    def __call__(self, context: Context, index: int) -> Any:
        """The row of prompt `index`, a dataclass of `resispec.record`."""

    def progress(self, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
        """What the progress bar shows of the rows so far."""


@dataclass(frozen=True)
class Decode:
    """Decode every prompt.

    audit: record the statistics of the emitted tokens; such a cell decodes the same tokens, and its times do not count.
    """

    audit: bool = False

    def __call__(self, context: Context, index: int) -> PromptRow:
        """See `Task`; an `AuditRow` where `audit` is set."""
        prompt_id, tokens = context.prompts[index]
        observed: list[Terms] = []
        generation = context.decoder.generate(
            context.pair,
            tokens,
            context.sampling,
            context.generator(index),
            on_step=(lambda step: observed.append(step_terms(step))) if self.audit else None,
        )
        row = PromptRow.of(index, prompt_id, context.seed + index, len(tokens), generation)
        return AuditRow.extend(row, cut(join(observed), row.num_returned)) if self.audit else row

    def progress(self, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
        """The accepted length over all rows."""
        emitted, steps = (sum(row[name] for row in rows) for name in ("num_emitted", "num_steps"))
        return {"accepted_length": f"{emitted / steps:.2f}"}
