"""The text and the update of every drafter's training.

AdamW, gradients clipped by value, a linear warm-up and a cosine; in float32 whatever the target's precision.
Every step's randomness follows from the seed and the step's number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from resispec.errors import InvalidInput
from resispec.training.checkpoints import BETAS, Training
from resispec.training.recipe import Eagle3Recipe, EagleRecipe


@dataclass(frozen=True)
class Sequences:
    """Training text.

    tokens: sequences of at least three tokens. weights: (S,), in proportion to which they are drawn; None:
    all alike.
    """

    tokens: Sequence[Sequence[int]]
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.tokens or min(map(len, self.tokens)) < 3:
            raise InvalidInput("training needs sequences of at least three tokens; found fewer")

    @property
    def shares(self) -> Tensor:
        """The weights (S,), 1 where none are given."""
        return torch.ones(len(self.tokens)) if self.weights is None else self.weights

    def tensors(self) -> dict[str, Tensor]:
        """All tokens one after another, the length of every sequence, and its weight, by their names."""
        return {
            "tokens": torch.tensor([token for sequence in self.tokens for token in sequence]),
            "lengths": torch.tensor([len(sequence) for sequence in self.tokens]),
            "weights": self.shares,
        }

    def draw(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """`count` sequences, padded with zeros, and where they are real: (count, T) int64 and bool."""
        places = torch.multinomial(self.shares, count, True, generator=generator).tolist()
        rows = [torch.tensor(self.tokens[place]) for place in places]
        padded = pad_sequence(rows, batch_first=True)
        return padded, torch.arange(padded.shape[1]) < torch.tensor([[len(row)] for row in rows])


class DrafterTraining(Training):
    """A training under way of a drafter.

    target: a transformers Llama, which stays as it is. module: the drafter.
    """

    def __init__(
        self, target: Any, module: nn.Module, sequences: Sequences, recipe: EagleRecipe | Eagle3Recipe
    ) -> None:
        self._target, self._sequences = target, sequences
        # Precise and apart from the target's own, whose gradients nobody needs.
        self._head = target.get_output_embeddings().weight.detach().float()
        self._trained = [weight for weight in module.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(self._trained, lr=recipe.learning_rate, betas=BETAS)
        sources = {"target": target.state_dict(), "data": sequences.tensors()}
        super().__init__(module, recipe, [self._optimizer], sources)

    @abstractmethod
    def _losses(self, tokens: Tensor, is_real: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The loss that is minimised, and the two that are measured. tokens: (B, T) int64; is_real: bool."""

    @property
    def _seed(self) -> int:
        """The seed of the next step's randomness."""
        return (self.recipe.seed << 32) + self.done

    def _update(self) -> tuple[float, float]:
        generator = Generator().manual_seed(self._seed)
        drawn = self._sequences.draw(self.recipe.batch_size, generator)
        loss, (first, second) = self._losses(*(part.to(self._head.device) for part in drawn))
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(self._trained, self.recipe.clip)
        self._optimizer.step()
        return float(first.detach()), float(second.detach())
