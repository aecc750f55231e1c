"""Transcripts drawn from known laws: those of an exact engine, and of engines with a bias of a known size.

All rows are continued together, by an inverse of cumulative sums with a random number for each token, so that
thousands of rows take seconds. What the laws do wrong is in none of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resispec.engines import Settings
from resispec.models.scoring import Scorer
from resispec.models.warpers import truncated
from resispec.transcripts import Transcript


@dataclass(frozen=True)
class Context:
    """Where R rows stand before their next token.

    logits: (R, V) of the target. draft: (R, V), the draft's law. emitted: (R, T) int64, the tokens so far
    without the prompt. eos: the target's end-of-sequence tokens.
    """

    logits: Tensor
    draft: Tensor
    emitted: Tensor
    eos: Sequence[int]


Law = Callable[[Context], Tensor]
"""The law (R, V) of the next token."""


def exact(context: Context) -> Tensor:
    """The target's own."""
    return context.logits.softmax(-1)


def tempered(temperature: float) -> Law:
    """Another temperature than 1."""
    return lambda context: (context.logits / temperature).softmax(-1)


def cut(**settings: float) -> Law:
    """With top_k, top_p or min_p."""
    return lambda context: truncated(context.logits, replace(Settings(), **settings)).softmax(-1)


def toward_draft(variation: float) -> Law:
    """p + l (q - p), at this total variation from p, or at q where that is nearer."""

    def law(context: Context) -> Tensor:
        p, q = context.logits.softmax(-1), context.draft
        share = variation / (p - q).clamp_min(0).sum(-1, keepdim=True)
        return p + share.clamp_max(1) * (q - p)

    return law


def repeating_less(penalty: float) -> Law:
    """A presence penalty."""

    def law(context: Context) -> Tensor:
        present = torch.zeros_like(context.logits).scatter_(1, context.emitted, 1.0)
        return (context.logits - penalty * present).softmax(-1)

    return law


def endless(context: Context) -> Tensor:
    """Sequences never end."""
    return context.logits.index_fill(1, torch.tensor(context.eos), -torch.inf).softmax(-1)


def rounded(context: Context) -> Tensor:
    """Logits in bfloat16."""
    return context.logits.bfloat16().float().softmax(-1)


LAWS: Mapping[str, Law] = {
    "top-k of 50": cut(top_k=50),
    "top-p of 0.95": cut(top_p=0.95),
    "temperature of 0.9": tempered(0.9),
    "temperature of 0.95": tempered(0.95),
    "toward the draft, TV .10": toward_draft(0.10),
    "toward the draft, TV .05": toward_draft(0.05),
    "toward the draft, TV .02": toward_draft(0.02),
    "presence penalty of 0.5": repeating_less(0.5),
    "sequences never end": endless,
    "logits rounded to bfloat16": rounded,
}
"""Laws that an engine may have where the rows say that it samples from the target's own."""


@torch.inference_mode()
def draw(
    law: Law, prompts: Sequence[tuple[int, ...]], target: Scorer, draft: Scorer, seed: int, new: int = 64
) -> list[Transcript]:
    """A transcript of every prompt, of `new` tokens at most; prompts: of one length."""
    generator = torch.Generator().manual_seed(seed)
    fresh, emitted = torch.tensor(prompts), torch.empty(len(prompts), 0, dtype=torch.int64)
    caches = [None, None]
    for _ in range(new):
        logits = []
        for place, scorer in enumerate((target, draft)):
            output = scorer.module(input_ids=fresh, past_key_values=caches[place], use_cache=True)
            caches[place] = output.past_key_values
            logits.append(output.logits[:, -1].float())
        probs = law(Context(logits[0], logits[1].softmax(-1), emitted, target.eos_token_ids)).double()
        edges = probs.cumsum(-1)
        shares = torch.rand(len(prompts), 1, generator=generator, dtype=torch.float64) * edges[:, -1:]
        fresh = torch.searchsorted(edges, shares, right=True)
        emitted = torch.cat((emitted, fresh), 1)
    return [_ended(*row, target.eos_token_ids) for row in zip(prompts, emitted.tolist(), strict=True)]


def _ended(prompt: tuple[int, ...], emitted: Sequence[int], eos: Sequence[int]) -> Transcript:
    """The transcript up to the first end of sequence."""
    end = next((place for place, token in enumerate(emitted) if token in eos), None)
    if end is None:
        return Transcript(prompt, tuple(emitted), finish_reason="length")
    return Transcript(prompt, tuple(emitted[: end + 1]), finish_reason="stop")
