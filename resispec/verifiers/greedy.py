"""The rule for greedy draws (Hu et al., arXiv 2502.18779), see `resispec.draws.greedy`.

The rule attains the highest acceptance that an exact rule can have with these draws: P(D) plus the
sum of min(p, r) outside D.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resispec.distributions import normalise, null_mass, quotient, without
from resispec.verifiers.base import Draws, DrawsKind, Law, require_draws
from resispec.verifiers.registry import register


@register("greedy")
@dataclass(frozen=True)
class Greedy:
    """Accepts the drawn sibling x ~ r with probability min(1, p(x) / r(x)),
    else draws from norm((p - r)+).

    r is q without the set D of the chosen siblings, renormalised. It is 0 on D, so all mass of p on
    D is in the residual; a residual token in D selects the sibling that holds the token.
    """

    is_bounded: ClassVar[bool] = True  # see `lookahead`

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`. Raises InvalidInput unless the draws are greedy."""
        require_draws("greedy", draws, Draws.GREEDY)
        largest, token = siblings[..., :-1], siblings[..., -1:]
        draft = without(draft_probs, largest)
        accept = quotient(target_probs.gather(-1, token), draft.gather(-1, token)).clamp_max(1)
        null = null_mass(target_probs)
        mass = (target_probs - draft).clamp_min(0)
        residual = normalise(mass, target_probs, null)
        select = torch.cat(((1 - accept) * residual.gather(-1, largest), accept), -1)
        return Law(select, normalise(mass.scatter(-1, largest, 0.0), target_probs, null))
