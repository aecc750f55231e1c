"""What the trainings of drafters share: the text, and an update.

AdamW, gradients clipped by value, a linear warm-up and a cosine; in float32 whatever the target's precision.
Every step's randomness follows from the seed and the step's number, so a training that goes on from a
checkpoint ends as one that was never stopped.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Generator, Tensor
from tqdm import tqdm

from resispec.errors import InvalidInput
from resispec.models import Eagle3Module, EagleModule
from resispec.training.recipe import Eagle3Recipe, EagleRecipe

Network = TypeVar("Network", bound=EagleModule | Eagle3Module)
Recipe = TypeVar("Recipe", bound=EagleRecipe | Eagle3Recipe)

_BETAS = (0.9, 0.95)
_FINAL_SHARE = 0.02  # of the peak learning rate, at the end of the cosine


@dataclass(frozen=True)
class Sequences:
    """Training text.

    tokens: sequences of at least three tokens. weights: how often each is drawn, in proportion; None: alike.
    """

    tokens: Sequence[Sequence[int]]
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.tokens or min(map(len, self.tokens)) < 3:
            raise InvalidInput(
                "training needs sequences of at least three tokens; found a shorter one or none"
            )

    def draw(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """`count` sequences, padded with zeros on the right, and where they are real.

        Both (count, T), int64 and bool.
        """
        weights = torch.ones(len(self.tokens)) if self.weights is None else self.weights
        chosen = [
            self.tokens[index]
            for index in torch.multinomial(weights, count, True, generator=generator).tolist()
        ]
        length = max(map(len, chosen))
        padded = torch.tensor([[*sequence, *[0] * (length - len(sequence))] for sequence in chosen])
        return padded, torch.arange(length) < torch.tensor([[len(sequence)] for sequence in chosen])


class DrafterTraining(ABC, Generic[Network, Recipe]):
    """A training under way.

    target: a transformers Llama, which stays as it is. module: the drafter.
    """

    drafter: ClassVar[str]
    """What is trained, for a progress bar."""
    measured: ClassVar[tuple[str, str]]
    """The names of the two losses that a step returns."""

    def __init__(self, target: Any, module: Network, sequences: Sequences, recipe: Recipe) -> None:
        self.module, self.done = module, 0
        self._target, self._sequences, self._recipe = target, sequences, recipe
        # Precise and apart from the target's own, whose gradients nobody needs.
        self._head = target.get_output_embeddings().weight.detach().float()
        self._trained = [weight for weight in module.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(self._trained, lr=recipe.learning_rate, betas=_BETAS)

    @abstractmethod
    def _losses(self, tokens: Tensor, is_real: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """What is minimised, and the two losses that are measured.

        tokens: (B, T) int64. is_real: (B, T) bool.
        """

    @property
    def _seed(self) -> int:
        """Of the next step's randomness."""
        return (self._recipe.seed << 32) + self.done

    def step(self) -> tuple[float, float]:
        """One update; returns the losses `measured` before it."""
        recipe, generator = self._recipe, Generator().manual_seed(self._seed)
        drawn = self._sequences.draw(recipe.batch_size, generator)
        loss, (first, second) = self._losses(*(part.to(self._head.device) for part in drawn))
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(self.done, recipe)
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(self._trained, recipe.clip)
        self._optimizer.step()
        self.done += 1
        return float(first.detach()), float(second.detach())

    def updates(self, steps: int, what: str) -> Iterator[tuple[float, float]]:
        """Go on until so many steps are done, under a progress bar; yields what each returns.

        what: whose drafter is trained, for the bar.
        """
        title = f"{what} {self.drafter}"
        with tqdm(total=steps, initial=self.done, desc=title, unit="step", dynamic_ncols=True) as bar:
            while self.done < steps:
                found = self.step()
                shown = (f"{loss:.3f}" for loss in found)
                bar.set_postfix(dict(zip(self.measured, shown, strict=True)), refresh=False)
                yield found
                bar.update()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: plain values and tensors."""
        return {
            "recipe": asdict(self._recipe),
            "done": self.done,
            "module": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint was made. Raises InvalidInput when it was made with another recipe."""
        if state["recipe"] != asdict(self._recipe):
            raise InvalidInput(
                f"the checkpoint was made with {state['recipe']}; asked for {asdict(self._recipe)}"
            )
        self.module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]


def _schedule(step: int, recipe: EagleRecipe | Eagle3Recipe) -> float:
    """Share of the peak learning rate: a linear warm-up, then a cosine."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return _FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))
