"""The standard recursive rejection rule.

It is SpecInfer (arXiv 2305.09781) for i.i.d. draws and Sequoia (2402.12374) for draws without
replacement; with one sibling it is plain speculative sampling.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from resispec.verifiers.recursive import Recursive
from resispec.verifiers.registry import register


@register("standard")
@dataclass(frozen=True)
class Standard(Recursive):
    """After x ~ q was refused, the target becomes norm(max(p - q, 0)): Equation 2 of the paper."""

    is_bounded: ClassVar[bool] = True

    def reshape(self, target: Tensor, draft: Tensor, rejected: Tensor) -> Tensor:
        """See `Recursive.reshape`: the target's excess over the draft, whatever was refused."""
        return (target - draft).clamp_min_(0)
