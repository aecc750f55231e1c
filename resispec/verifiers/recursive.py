"""Algorithm 1 of the paper: siblings are tested one after another, and every rejection leaves a residual.

`standard` and `resispec` differ only in how they shape that residual (the algorithm's underlined step). The ways to draw siblings
differ only in how the draft's law changes from one sibling to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from resispec.distributions import normalise, null_mass, without
from resispec.verifiers.base import Draws, Law


class Shape(Protocol):
    """How the target mass that a rejection leaves is distributed."""

    def __call__(self, target: Tensor, draft: Tensor, rejected: Tensor) -> Tensor:
        """Unnormalised residual (..., V) after `rejected` (..., 1) int64, drawn from `draft` (..., V), was refused."""


@dataclass(frozen=True)
class Recursive:
    """Test sibling i with probability min(1, p_i(x_i) / q_i(x_i)); after a rejection p_{i+1} is the shaped residual.

    The law is computed in closed form, without coins: `select[i]` is the product of the rejections before i and the acceptance
    of i. A target of mass a < 1 is a law over V tokens and a null outcome of mass 1 - a that no draft proposes.
    is_bounded: the shape leaves no token more than the target gives it, and the rejected one nothing; then p_i <= a p / (1 - a),
    since what all residuals are divided by is never less than 1 - a, and the promise of `lookahead` holds.
    """

    shape: Shape
    is_bounded: bool = False

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`; defined for every kind of draws."""
        target, null = target_probs, null_mass(target_probs)
        tiny = torch.finfo(target_probs.dtype).tiny
        alive = torch.ones_like(null)
        select = []
        for draft, token in _draft_laws(draft_probs, siblings, draws):
            accept = (target.gather(-1, token) / draft.gather(-1, token).clamp_min(tiny)).clamp_max(1)
            select.append(alive * accept)
            alive = alive - select[-1]
            mass = self.shape(target, draft, token)
            total = mass.sum(-1, keepdim=True) + null
            # Where a rejection has probability zero nothing is left to shape, and the law before it stands.
            is_possible = total > tiny
            total = torch.where(is_possible, total, 1.0)
            target = torch.where(is_possible, mass / total, target)
            null = null / total
        return Law(torch.cat(select, -1), target)


def _draft_laws(draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Iterator[tuple[Tensor, Tensor]]:
    """The law (..., V) that each sibling was drawn from given the earlier ones, and its token (..., 1)."""
    draft, unseen = draft_probs, None
    last = siblings.shape[-1] - 1
    for rank, token in enumerate(siblings.split(1, dim=-1)):
        if draws is Draws.POINT_MASS or (draws is Draws.GREEDY and rank < last):
            draft = torch.zeros_like(draft_probs).scatter(-1, token, 1.0)
        elif draws is Draws.GREEDY:
            draft = without(draft_probs, siblings[..., :-1])
        yield draft, token
        if draws is Draws.WITHOUT_REPLACEMENT:
            # Once every token of positive mass is drawn, the next one is uniform over those not drawn yet.
            unseen = (torch.ones_like(draft_probs) if unseen is None else unseen).scatter(-1, token, 0.0)
            draft = normalise(draft.scatter(-1, token, 0.0), normalise(unseen, unseen))
