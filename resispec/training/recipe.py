"""What decides how EAGLE drafters are trained; naming it takes no torch."""

from __future__ import annotations

from dataclasses import dataclass

from resispec.errors import InvalidInput


@dataclass(frozen=True)
class EagleRecipe:
    """How a drafter is trained.

    The defaults are the published ones, but for the number of steps and a cosine after the warm-up.

    batch_size: sequences. law_weight: of the cross-entropy, beside the regression's 1. noise: width of the
    uniform noise at 512 tokens; shorter sequences get more in proportion. clip: of every gradient's absolute
    value.
    Raises InvalidInput for sizes below 1.
    """

    steps: int = 20_000
    batch_size: int = 4
    learning_rate: float = 3e-5
    warmup_steps: int = 2000
    law_weight: float = 0.1
    noise: float = 0.2
    clip: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch_size) < 1 or self.learning_rate <= 0 or self.warmup_steps < 0:
            raise InvalidInput(
                f"steps and batch_size are at least 1, learning_rate is positive; found {self}"
            )


@dataclass(frozen=True)
class Eagle3Recipe:
    """How an EAGLE-3 drafter is trained; as `EagleRecipe`, where fields have the same names.

    The defaults are the published ones, but for the number of steps and a cosine after the warm-up.

    num_draftable: tokens of the drafter's vocabulary, the most frequent ones of the text. depth: steps of
    training-time test, the first on true features. decay: weight of a step's loss, beside the one before.
    Raises InvalidInput for sizes below 1.
    """

    num_draftable: int = 32_000
    depth: int = 7
    decay: float = 0.8
    steps: int = 20_000
    batch_size: int = 4
    learning_rate: float = 5e-5
    warmup_steps: int = 2000
    clip: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = (self.num_draftable, self.depth, self.steps, self.batch_size)
        if min(sizes) < 1 or self.learning_rate <= 0 or self.warmup_steps < 0 or self.decay <= 0:
            raise InvalidInput(
                "num_draftable, depth, steps and batch_size are at least 1, learning_rate and decay are "
                f"positive; found {self}"
            )
