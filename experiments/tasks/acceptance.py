"""The acceptance vector that tree search needs: how often a node's first, second, ... child is the accepted one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from experiments.tasks.prefixes import identity, written
from experiments.tasks import Context
from resispec.audit.first_token import rule_of
from resispec.core import Draws
from resispec.distributions import draw_siblings, probabilities
from resispec.law_rows import AcceptanceRow
from resispec.models import extend


@dataclass(frozen=True)
class Acceptance:
    """Acceptance by place in draw order under a star of `num_siblings` children (Sequoia, arXiv 2402.12374, section 3.1).

    The target writes a continuation of every prompt, and the cell's verifier meets fresh children at each of its positions. Its
    law gives the probability of accepting each of them, so no coin is thrown.
    draws: how siblings are drawn.
    """

    num_siblings: int
    draws: Draws

    @torch.inference_mode()
    def __call__(self, context: Context, index: int) -> AcceptanceRow:
        """See `Task`."""
        generator, (_, prompt) = context.generator(index), context.prompts[index]
        tokens = written(context, index, generator)
        selected = torch.zeros(self.num_siblings, dtype=torch.float64)
        for target_probs, draft_probs in _laws(context, prompt, tokens):
            selected += self._selected(context, target_probs, draft_probs, generator)
        return AcceptanceRow(**identity(context, index, len(tokens)), selected=selected.tolist())

    def _selected(
        self, context: Context, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Tensor:
        """(B,) float64, summed over positions (C, V)."""
        draws = Draws(self.draws)
        siblings = draw_siblings(draft_probs, self.num_siblings, draws, generator)
        law = rule_of(context.decoder.verifier).law(target_probs, draft_probs, siblings, draws)
        return law.select.double().sum(0).cpu()

    def progress(self, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
        """The acceptance of the first child."""
        return {
            "first": f"{sum(row['selected'][0] for row in rows) / sum(row['num_contexts'] for row in rows):.3f}"
        }


def _laws(
    context: Context, prompt: list[int], tokens: list[int], block: int = 32
) -> list[tuple[Tensor, Tensor]]:
    """Both models' laws (C, V) of every token that was written, in blocks of positions that bound the memory."""
    models = (context.pair.target, context.pair.draft_model())
    sequence = [*prompt, *tokens[:-1]]
    features = [
        extend(model.session(len(sequence)), sequence, model.device)[len(prompt) - 1 :] for model in models
    ]
    blocks = zip(*(rows.split(block) for rows in features), strict=True)
    temperature = context.sampling.temperature
    return [
        tuple(probabilities(model.head(part), temperature) for model, part in zip(models, parts, strict=True))
        for parts in blocks
    ]
