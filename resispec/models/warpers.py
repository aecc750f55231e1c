"""What samplers do to logits before they draw: penalties, temperature, top-k, top-p and min-p.

`Warp` is how decoding turns logits into laws, of target and draft alike. The classes are those of
transformers, in the order of its `generate` (`_get_logits_processor`): repetition penalty, temperature,
top-k, top-p, min-p. transformers has no presence and no frequency penalty; they are OpenAI's, as vLLM applies
them (`vllm/model_executor/layers/utils.py`, `apply_penalties`): after the repetition penalty and before the
temperature, over emitted tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitNormalization,
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from resispec.distributions import probabilities
from resispec.errors import InvalidInput
from resispec.models.scoring import Stretch
from resispec.transcripts import WarpSettings


class TruncationSettings(Protocol):
    """The settings that need no tokens, each with a value at which it is off: 1, 1, 0 and 0 in this order.

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


class SamplingSettings(TruncationSettings, Protocol):
    """The settings of a request; of the penalties the first is off at 1, the others at 0."""

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


def tempered(scores: Tensor, settings: TruncationSettings) -> Tensor:
    """Scores (K, V) divided by the temperature, which is not 0."""
    if settings.temperature == 1:
        return scores
    return TemperatureLogitsWarper(float(settings.temperature))(None, scores)


def truncated(scores: Tensor, settings: TruncationSettings) -> Tensor:
    """Scores (K, V) with -inf for every token that top-k, top-p or min-p leaves out."""
    for warper in _truncating(settings):
        scores = warper(None, scores)
    return scores


def _truncating(settings: TruncationSettings) -> list[LogitsProcessor]:
    """The warpers that leave tokens out, in the order of transformers."""
    warpers: list[LogitsProcessor] = []
    if settings.top_k:
        warpers.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        warpers.append(TopPLogitsWarper(float(settings.top_p)))
    if settings.min_p:
        warpers.append(MinPLogitsWarper(float(settings.min_p)))
    return warpers


@dataclass(frozen=True, kw_only=True)
class Warp(WarpSettings):
    """From logits to a law: temperature, then top-k, top-p and min-p; at temperature 0 a point mass.

    Raises InvalidInput for values that are not allowed.
    """

    def __post_init__(self) -> None:
        self.check("sampling")

    @classmethod
    def of(cls, settings: WarpSettings) -> Warp:
        """The warp that settings of more than a warp ask for."""
        return cls(**{item.name: getattr(settings, item.name) for item in fields(WarpSettings)})

    @property
    def for_draft(self) -> Warp:
        """The warp of the draft's logits: the same, or temperature 1 where decoding is greedy.

        Any law of the draft is exact. A point mass would make all siblings equal, and nothing would say which
        tokens come second.
        """
        return self if self.temperature else Warp()

    def law(self, logits: Tensor) -> Tensor:
        """The law (K, V) of logits (K, V), in float32, or in float64 when the logits are float64.

        Greedy decoding takes the first of equally likely tokens. NaN stays NaN.
        """
        precise = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature == 0:
            likeliest = torch.zeros_like(precise).scatter_(-1, precise.argmax(-1, keepdim=True), 1.0)
            return torch.where(precise.isnan().any(-1, keepdim=True), torch.nan, likeliest)
        if self.top_k or self.top_p < 1 or self.min_p:
            return probabilities(truncated(tempered(precise, self), self), 1)
        return probabilities(precise, self.temperature)


def read_warp(processors: Sequence[LogitsProcessor], do_sample: bool) -> Warp:
    """The warp that a list of transformers' processors amounts to; greedy unless `do_sample`.

    Raises InvalidInput naming the first processor that is none of temperature, top-k, top-p and min-p, each
    at most once, in this order and with no other option than its own value.
    """
    found, place = dict[str, Any](), -1
    # A law is normalised in any case.
    for processor in (one for one in processors if type(one) is not LogitNormalization):
        name = _WARPED.get(type(processor))
        if name is None or (rank := list(_WARPED.values()).index(name)) <= place:
            raise _not_understood(processor)
        found[name], place = getattr(processor, name), rank
        # With other options, such as the fewest tokens to keep, it is not what the value alone gives.
        kind: Any = type(processor)
        if vars(processor) != vars(kind(found[name])):
            raise _not_understood(processor)
    return Warp(**found) if do_sample else Warp(temperature=0.0)


_WARPED: dict[type[LogitsProcessor], str] = {
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
    MinPLogitsWarper: "min_p",
}
"""The setting of every warper, in the order of transformers."""


def _not_understood(processor: LogitsProcessor) -> InvalidInput:
    return InvalidInput(
        f"logits processor {type(processor).__name__} {vars(processor)} cannot be applied to a tree; "
        "allowed: temperature, top_k, top_p and min_p with their own value alone, in this order"
    )


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
