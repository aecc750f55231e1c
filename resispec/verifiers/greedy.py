"""The rule for greedy draws (Hu et al., arXiv 2502.18779): the B - 1 largest tokens of q, and one drawn from the others.

It attains the highest acceptance that an exact rule can have with these draws, P(D) + sum min(p, r) outside D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resispec.distributions import normalise, null_mass, without
from resispec.verifiers.base import Draws, Law, require_draws


@dataclass(frozen=True)
class Greedy:
    """Accept the drawn sibling x ~ r with probability min(1, p(x) / r(x)), else continue from norm(max(p - r, 0)).

    r is q without the set D of deterministic siblings, so all of p on D is in that residual; what it gives to D is theirs.
    """

    is_bounded: ClassVar[bool] = True  # see `lookahead`

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`. Raises InvalidInput unless the draws are greedy."""
        require_draws("greedy", draws, (Draws.GREEDY,))
        largest, drawn = siblings[..., :-1], siblings[..., -1:]
        draft = without(draft_probs, largest)
        tiny = torch.finfo(target_probs.dtype).tiny
        accept = (target_probs.gather(-1, drawn) / draft.gather(-1, drawn).clamp_min(tiny)).clamp_max(1)
        null = null_mass(target_probs)
        mass = (target_probs - draft).clamp_min(0)
        rejected = normalise(mass, target_probs, null)
        select = torch.cat(((1 - accept) * rejected.gather(-1, largest), accept), -1)
        return Law(select, normalise(mass.scatter(-1, largest, 0.0), target_probs, null))


def rule() -> Greedy:
    """The optimum for greedy draws; no options."""
    return Greedy()
