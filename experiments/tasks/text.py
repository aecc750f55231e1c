"""Decode every prompt, and describe what was written.

Rows say how likely the target finds the text, how often it repeats itself, and how long it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from experiments.tasks.base import Task, Workload, share
from experiments.tasks.decode import Decode, PromptRow
from resispec.models import features_of

LONGEST = 4
"""The longest n-grams that are counted."""


@dataclass(frozen=True)
class TextRow(PromptRow):
    """One decoded prompt with sums over the tokens of its answer.

    surprisal: sum of -log p(token) in nats, p the law that was sampled from; tokens that it gives
    no mass are counted in num_outside, and are no part of the sum. surprisal_unwarped: the same
    of the target's law at T = 1, without filters. num_ngrams, num_distinct: n-grams of n = 1 to
    LONGEST, and how many different ones.
    """

    surprisal: float
    surprisal_unwarped: float
    num_outside: int
    num_ngrams: list[int]
    num_distinct: list[int]


@dataclass(frozen=True)
class Text(Task):
    """Task that decodes every prompt, then reads its answer with one forward of the target."""

    row: ClassVar[type[TextRow]] = TextRow

    @torch.inference_mode()
    def __call__(self, workload: Workload, index: int) -> TextRow:
        """See `Task`."""
        decoded, prompt = Decode()(workload, index), workload.prompts[index][1]
        answer = decoded.tokens or []
        target = workload.pair.target
        features = features_of(target, [*prompt, *answer], len(prompt))
        logits = target.head(features[len(prompt) - 1 : -1])
        tokens = torch.tensor(answer, device=logits.device)[:, None]
        sampled = workload.sampling.warp.law(logits).double().gather(-1, tokens)[:, 0]
        unwarped = logits.double().log_softmax(-1).gather(-1, tokens)[:, 0]
        num_ngrams, num_distinct = ngrams(answer)
        return TextRow(
            **vars(decoded),
            surprisal=_surprisal(sampled),
            surprisal_unwarped=-float(unwarped.sum()),
            num_outside=int((sampled == 0).sum()),
            num_ngrams=num_ngrams,
            num_distinct=num_distinct,
        )

    def progress(self, rows: Sequence[TextRow]) -> dict[str, str]:
        """Nats a token, and the accepted length."""
        tokens = sum(row.num_returned - row.num_outside for row in rows)
        return {"surprisal": share(sum(row.surprisal for row in rows), tokens, ".3f")} | (
            Decode().progress(rows)
        )


def _surprisal(probs: Tensor) -> float:
    """The sum of -log p over the tokens that have mass. probs: (K,) float64."""
    return -float(probs[probs > 0].log().sum())


def ngrams(tokens: Sequence[int]) -> tuple[list[int], list[int]]:
    """For n = 1 to LONGEST, the number of a text's n-grams, and of different ones among them."""
    by_length = [
        [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
        for n in range(1, LONGEST + 1)
    ]
    return [len(found) for found in by_length], [len(set(found)) for found in by_length]
