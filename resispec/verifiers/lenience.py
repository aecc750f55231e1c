"""Lenience of Leviathan et al. (arXiv 2211.17192, appendix A.5): q is made smaller before the test.

Biased. The paper has one sibling; several are tested in turn here, as by the standard rule. With
independent draws no token is emitted with more than p / l, the paper's promise: the first sibling
gives a token at most min(q, p / l), a rejection leaves at most (p - q)+ of it, and the others give
it at most 1 / l of that.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.distributions import normalise, null_mass, quotient
from resispec.verifiers.base import DrawsKind, Law
from resispec.verifiers.options import check_number
from resispec.verifiers.registry import register


@register("lenience")
@dataclass(frozen=True)
class Lenience:
    """Accepts x ~ q with probability min(1, p(x) / (l q(x))), else goes on from norm((p - q)+).

    factor: l, above 0 and at most 1; with 1 it is the standard rule. The text changes the test of
    Algorithm 1 alone, so its residual stays. Raises InvalidInput for another number.
    """

    factor: float = 0.5

    def __post_init__(self) -> None:
        allowed = "above 0, at most 1"
        check_number("lenience: factor", self.factor, lambda one: 0 < one <= 1, allowed)

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`; defined for every kind of draws."""
        target, select = target_probs, list[Tensor]()
        rest = torch.ones_like(target_probs[..., :1])
        laws = draws.laws(draft_probs, siblings)
        for token, draft in zip(siblings.split(1, -1), laws, strict=True):
            ratio = quotient(target.gather(-1, token), self.factor * draft.gather(-1, token))
            select.append(rest * ratio.clamp_max(1))
            rest = rest - select[-1]
            target = normalise((target - draft).clamp_min(0), target, null_mass(target))
        return Law(torch.cat(select, -1), target)
