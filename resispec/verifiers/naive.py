"""The naive rule of SpecInfer (arXiv 2305.09781): draw from the target and see if it was drafted.

The rule is exact however the siblings were chosen, and the best exact rule when they were chosen
deterministically (EAGLE-2, 2406.16858).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resispec.distributions import normalise, null_mass
from resispec.verifiers.base import DrawsKind, Law, is_first
from resispec.verifiers.registry import register


@register("naive")
@dataclass(frozen=True)
class Naive:
    """Sibling i is emitted with its token's target probability;
    of equal siblings only the first can be.
    """

    is_bounded: ClassVar[bool] = True  # see `lookahead`

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`; defined for every kind of draws. The draft's law plays no part."""
        select = target_probs.gather(-1, siblings)
        if not draws.are_distinct:
            select = torch.where(is_first(siblings), select, 0.0)
        residual = target_probs.scatter(-1, siblings, 0.0)
        return Law(select, normalise(residual, target_probs, null_mass(target_probs)))
