"""ResiSpec (arXiv 2608.24411), Algorithm 1 with GetProxy, as published.

After x0 ~ q was refused, the proxy k keeps k(x0) = q(x0) and leaves a residual r = p - k of mass
Z = q(x0) - p(x0) that follows q where p has room. The residual depends on x0, which the paper's
proof does not take into account, so the output is biased toward the draft.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.distributions import normalise, quotient
from resispec.errors import InvalidInput
from resispec.timing import part
from resispec.verifiers.recursive import Recursive
from resispec.verifiers.registry import register


@register("resispec")
@dataclass(frozen=True)
class ResiSpec(Recursive):
    """Algorithm 1 with the residual of GetProxy.

    spread: where the mass lost by clipping at p goes: "proportional" to the remaining capacity
        p - r of the other tokens, or "water_fill" toward q, raising the level of min(level * q, p)
        until the budget is met.
    budget: "gap" is Z = q(x0) - p(x0), as in the algorithm; "capacity" is
        max(min_x p(x) / q(x), Z), as in the text, at most the capacity of the other tokens, p's
        mass without x0.

    Raises InvalidInput for an unknown option.
    """

    spread: str = "proportional"
    budget: str = "gap"

    def __post_init__(self) -> None:
        options = {"spread": ("proportional", "water_fill"), "budget": ("gap", "capacity")}
        for name, allowed in options.items():
            if getattr(self, name) not in allowed:
                raise InvalidInput(
                    f"resispec: unknown {name} {getattr(self, name)!r}; allowed: "
                    f"{', '.join(allowed)}"
                )

    def reshape(self, target: Tensor, draft: Tensor, rejected: Tensor) -> Tensor:
        """See `Recursive.reshape`; returns r, the standard residual if the draft is a point mass.

        These are the paper's steps 1 and 2. Step 3, "proxy formulation", is left to `law`:
        k = p - r is never formed, since max(p - k, 0) is r again, and only the normalisation
        remains.
        """
        with part("budget"):  # and the initial projection
            budget = self._budget(target, draft, rejected)
            # r(x0) = 0: no capacity is left at the refused token
            room = target.scatter(-1, rejected, 0.0)
            residual = torch.minimum(budget * draft, room)
        with part("redistribution"):
            if self.spread == "water_fill":
                residual = torch.minimum(_water_level(room, draft, budget) * draft, room)
            rest = (budget - residual.sum(-1, keepdim=True)).clamp_min(0)
            return residual + rest * normalise(room - residual, torch.zeros_like(room))

    def _budget(self, target: Tensor, draft: Tensor, rejected: Tensor) -> Tensor:
        """Z (..., 1), the mass of the residual."""
        gap = (draft - target).gather(-1, rejected).clamp_min(0)
        if self.budget == "gap":
            return gap
        ratio = torch.where(draft > 0, target / draft, torch.inf).amin(-1, keepdim=True)
        room = target.scatter(-1, rejected, 0.0).sum(-1, keepdim=True)
        return torch.minimum(torch.maximum(gap, ratio), room)


def _water_level(capacity: Tensor, draft: Tensor, budget: Tensor) -> Tensor:
    """The level l (..., 1) with sum(min(l q, capacity)) = budget, or that fills all with q > 0.

    Tokens reach their capacity in increasing order of capacity / q. When the first k have, the sum
    is C_k + l (Q - Q_k), with C_k and Q_k the capacity and the mass under q of those k: solve it
    for every k and take the first level at which no further token reaches its capacity.
    """
    ratio = torch.where(draft > 0, capacity / draft, torch.inf)
    ratio, order = ratio.sort(-1)
    draft, capacity = (
        draft.gather(-1, order),
        torch.where(draft > 0, capacity, 0.0).gather(-1, order),
    )
    free = draft.flip(-1).cumsum(-1).flip(-1)
    before = capacity.cumsum(-1) - capacity
    level = quotient(budget - before, free)
    fits = (level <= ratio) & (draft > 0)
    first = fits.to(torch.uint8).argmax(-1, keepdim=True)
    full = torch.where(ratio.isfinite(), ratio, 0.0).amax(-1, keepdim=True)
    return torch.where(fits.any(-1, keepdim=True), level.gather(-1, first), full)
