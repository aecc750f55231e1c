"""What samplers do to logits before they draw: penalties, temperature, top-k, top-p and min-p.

The classes are those of transformers, in the order of its `generate` (`_get_logits_processor`): repetition
penalty, temperature, top-k, top-p, min-p. transformers has no presence and no frequency penalty; they are
OpenAI's, as vLLM applies them (`vllm/model_executor/layers/utils.py`, `apply_penalties`): after the
repetition penalty and before the temperature, over emitted tokens alone.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from resispec.models.scoring import Stretch


class SamplingSettings(Protocol):
    """The settings of a request, each with a value at which it is off: 1, 1, 0, 0, 1, 0 and 0 in this order.

    A temperature of 0 is greedy.
    """

    @property
    def temperature(self) -> float: ...  # noqa: D102
    @property
    def top_p(self) -> float: ...  # noqa: D102
    @property
    def top_k(self) -> int: ...  # noqa: D102
    @property
    def min_p(self) -> float: ...  # noqa: D102
    @property
    def repetition_penalty(self) -> float: ...  # noqa: D102
    @property
    def presence_penalty(self) -> float: ...  # noqa: D102
    @property
    def frequency_penalty(self) -> float: ...  # noqa: D102


def penalised(stretch: Stretch, settings: SamplingSettings) -> Tensor:
    """The stretch's logits (K, V) after the penalties."""
    scores = stretch.logits
    if settings.repetition_penalty != 1:
        penalty = RepetitionPenaltyLogitsProcessor(float(settings.repetition_penalty))
        scores = penalty(_context(stretch), scores)
    if settings.presence_penalty or settings.frequency_penalty:
        counts = emitted_counts(stretch, scores.shape[-1])
        scores = scores - settings.frequency_penalty * counts - settings.presence_penalty * (counts > 0)
    return scores


def tempered(scores: Tensor, settings: SamplingSettings) -> Tensor:
    """Scores (K, V) divided by the temperature, which is not 0."""
    if settings.temperature == 1:
        return scores
    return TemperatureLogitsWarper(float(settings.temperature))(None, scores)


def truncated(scores: Tensor, settings: SamplingSettings) -> Tensor:
    """Scores (K, V) with -inf for every token that top-k, top-p or min-p leaves out."""
    warpers: list[LogitsProcessor] = []
    if settings.top_k:
        warpers.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        warpers.append(TopPLogitsWarper(float(settings.top_p)))
    if settings.min_p:
        warpers.append(MinPLogitsWarper(float(settings.min_p)))
    for warper in warpers:
        scores = warper(None, scores)
    return scores


def emitted_counts(stretch: Stretch, vocab_size: int) -> Tensor:
    """How often (K, V) float32 every token was emitted before each of the K; the prompt does not count."""
    emitted = stretch.outputs[: stretch.first + len(stretch.logits)]
    is_past = stretch.is_past(torch.arange(len(emitted), device=emitted.device))
    counts = torch.zeros(len(is_past), vocab_size, device=emitted.device)
    return counts.scatter_add_(1, emitted.expand(len(is_past), -1), is_past.float())


def _context(stretch: Stretch) -> Tensor:
    """What was there before each of the K tokens (K, L) int64, prompt included.

    Where a row is shorter, a token of the prompt stands again: a repetition penalty counts a token once.
    """
    emitted = stretch.outputs[: stretch.first + len(stretch.logits)]
    is_past = stretch.is_past(torch.arange(len(emitted), device=emitted.device))
    return torch.cat(
        (stretch.prompt.expand(len(is_past), -1), torch.where(is_past, emitted, stretch.prompt[0])), 1
    )
