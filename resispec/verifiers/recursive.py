"""Algorithm 1 of the paper: siblings are tested one after another, and every rejection leaves a residual.

`Standard` and `ResiSpec` differ only in how they reshape that residual (the algorithm's underlined step). The
kinds of draws differ only in how the draft's law changes from one sibling to the next, see `Draws.laws`.
"""

from typing import ClassVar

import torch
from torch import Tensor

from resispec.distributions import null_mass
from resispec.timing import part
from resispec.verifiers.base import Draws, Law


class Recursive:
    """Accepts sibling i with probability min(1, p_i(x_i) / q_i(x_i)), else p_{i+1} is the reshaped residual.

    The law is computed in closed form, without coins: `select[i]` is the product of the rejections before i
    and the acceptance of i. A target of mass a < 1 is a law over V tokens and a null outcome of mass 1 - a
    that no draft proposes.

    A subclass says how the residual is reshaped; with the normalisation to p_{i+1} that follows this is the
    part "shaping" of a profile. It may set `is_bounded` when `reshape` leaves no token more than the target
    gives it, and the rejected one nothing; then p_i <= a p / (1 - a), since what all residuals are divided by
    is never less than 1 - a, and the promise of `lookahead` holds.
    """

    is_bounded: ClassVar[bool] = False

    def reshape(self, target: Tensor, draft: Tensor, rejected: Tensor) -> Tensor:
        """Unnormalised residual (..., V) after `rejected` (..., 1) int64 was refused.

        target: (..., V), the law that it was tested against. draft: (..., V), the law that it was drawn from.
        """
        raise NotImplementedError

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`; defined for every kind of draws."""
        target, null = target_probs, null_mass(target_probs)
        tiny = torch.finfo(target_probs.dtype).tiny
        alive = torch.ones_like(null)
        select = []
        laws, tokens = draws.laws(draft_probs, siblings), siblings.split(1, dim=-1)
        for draft, token in zip(laws, tokens, strict=True):
            accept = (target.gather(-1, token) / draft.gather(-1, token).clamp_min(tiny)).clamp_max(1)
            select.append(alive * accept)
            alive = alive - select[-1]
            with part("shaping"):
                mass = self.reshape(target, draft, token)
                with part("proxy"):
                    total = mass.sum(-1, keepdim=True) + null
                    # Where a rejection has probability zero nothing is left to reshape, and the law before it
                    # stands.
                    divisor = total.clamp_min(tiny)
                    target = torch.where(total <= tiny, target, mass / divisor)  # NaN stays NaN
                    null = null / divisor
        return Law(torch.cat(select, -1), target)
