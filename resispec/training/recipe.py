"""Settings by which drafters are trained; naming them takes no torch."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from resispec.errors import InvalidInput

Optimizer = Literal["adamw", "muon"]
MUON: Optimizer = "muon"


class _Checked:
    """A recipe whose numbers are finite and positive, but for the seed and those that may be zero."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            from_zero = name in ("warmup_steps", "law_weight", "noise")
            is_number = name not in ("seed", "layers", "optimizer")
            if is_number and not (0 < value < math.inf or (from_zero and value == 0)):
                allowed = "not negative" if from_zero else "positive"
                raise InvalidInput(f"{name} is {value}; allowed: {allowed} and finite")


@dataclass(frozen=True)
class EagleRecipe(_Checked):
    """Settings by which an EAGLE drafter is trained.

    The defaults are the published ones, but for the number of steps and a cosine after the warm-up.

    batch_size: sequences. law_weight: of the cross-entropy, beside the regression's 1. noise: width of the
    uniform noise at 512 tokens; shorter sequences get more in proportion. clip: of every gradient's absolute
    value. version: of the code that trains by the recipe; raise it with a change of the code's results, so
    that nothing made before passes for one of them.
    Raises InvalidInput for numbers out of range.
    """

    optimizer: ClassVar[Optimizer] = "adamw"

    steps: int = 20_000
    batch_size: int = 4
    learning_rate: float = 3e-5
    warmup_steps: int = 2000
    law_weight: float = 0.1
    noise: float = 0.2
    clip: float = 0.5
    seed: int = 0
    version: int = field(default=1, init=False)


@dataclass(frozen=True)
class Eagle3Recipe(_Checked):
    """Settings by which an EAGLE-3 drafter is trained; fields of `EagleRecipe`'s names mean the same.

    num_draftable: tokens of the drafter's vocabulary, the most frequent ones of the text. depth: steps of
    training-time test, the first on true features. decay: weight of a step's loss, beside the one before.
    optimizer: the published one, or Muon for all matrices but the head's, which learns more in a few steps.
    """

    num_draftable: int = 32_000
    depth: int = 7
    decay: float = 0.8
    steps: int = 20_000
    batch_size: int = 4
    learning_rate: float = 5e-5
    warmup_steps: int = 2000
    clip: float = 0.5
    optimizer: Optimizer = "adamw"
    seed: int = 0
    version: int = field(default=2, init=False)


@dataclass(frozen=True)
class DistillationRecipe(_Checked):
    """Settings by which a draft is distilled; fields of names as above mean the same.

    layers: numbers of the target's layers that the draft starts as, in its order.
    """

    optimizer: ClassVar[Optimizer] = MUON

    layers: tuple[int, ...]
    num_draftable: int
    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    clip: float = 0.5
    seed: int = 0
    version: int = field(default=2, init=False)
