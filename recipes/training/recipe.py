"""Settings by which drafters are trained; naming them does not import torch."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from resispec.errors import InvalidInput

Optimizer = Literal["adamw", "muon"]
MUON: Optimizer = "muon"


class _Checked:
    """A recipe whose numbers must be finite and positive; some may be 0, and the seed is free."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            from_zero = name in ("warmup_steps", "law_weight", "noise", "overlap_steps")
            is_number = name not in ("seed", "layers", "optimizer")
            if is_number and not (0 < value < math.inf or (from_zero and value == 0)):
                allowed = "not negative" if from_zero else "positive"
                raise InvalidInput(f"{name} is {value}; allowed: {allowed} and finite")


@dataclass(frozen=True)
class EagleRecipe(_Checked):
    """Settings by which an EAGLE drafter is trained.

    The defaults are the published ones, but for the number of steps and a cosine after the warm-up.

    batch_size: the number of sequences in a step. law_weight: the weight of the cross-entropy; the
    regression has 1. noise: the width of the uniform noise at 512 tokens; shorter sequences get
    more in proportion. clip: the limit of every gradient's absolute value. version: the version of
    the code that trains by the recipe; raise it when the code's results change, so that no older
    result passes for a new one.

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
    """Settings by which an EAGLE-3 drafter is trained; fields as in `EagleRecipe` mean the same.

    num_draftable: the size of the drafter's vocabulary, the text's most frequent tokens. depth: the
    number of steps of training-time test, the first on true features. decay: the weight of a step's
    loss, relative to the step before. optimizer: the published one, or Muon for all matrices but
    the head's, which learns more in a few steps.
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
    """Settings by which a draft is distilled; fields of `Eagle3Recipe`'s names mean the same.

    layers: the numbers of the target's layers from which the draft's layers start, in the draft's
    order. overlap_steps: the number of last steps that minimise 1 - overlap, the chance that the
    target refuses a drafted token, in place of the cross-entropy (arXiv 2602.23881).

    Raises InvalidInput for numbers out of range, and for more of these steps than there are.
    """

    optimizer: ClassVar[Optimizer] = MUON

    layers: tuple[int, ...]
    num_draftable: int
    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    clip: float = 0.5
    overlap_steps: int = 0
    seed: int = 0
    version: int = field(default=2, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap_steps > self.steps:
            raise InvalidInput(
                f"overlap_steps is {self.overlap_steps}; allowed: at most the {self.steps} steps"
            )
