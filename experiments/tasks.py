"""What a cell does with each of its prompts. A task is a callable (context, index) -> row; conf/task/ chooses it.

`Decode` measures throughput and accepted length. Every row is one prompt's, so that all tasks are resumed and bootstrapped alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from resispec.decode import Decoder, Sampling
from resispec.models import Pair
from resispec.record import PromptRow


@dataclass(frozen=True)
class Context:
    """What a cell works with. prompts: (id, token ids) in order; prompt i uses seed + i for every random stream."""

    pair: Pair
    decoder: Decoder
    sampling: Sampling
    prompts: list[tuple[str, list[int]]]
    seed: int

    def generator(self, index: int) -> torch.Generator:
        """The only source of randomness of a prompt."""
        return torch.Generator(self.pair.target.device).manual_seed(self.seed + index)


@dataclass(frozen=True)
class Decode:
    """Decode every prompt; diagnostics off, so that times count."""

    def __call__(self, context: Context, index: int) -> Any:
        """The prompt's `PromptRow`."""
        prompt_id, tokens = context.prompts[index]
        generation = context.decoder.generate(context.pair, tokens, context.sampling, context.generator(index))
        return PromptRow.of(index, prompt_id, context.seed + index, len(tokens), generation)
