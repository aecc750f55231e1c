"""The standard rule in parts: how a sibling is tested, and what is left of the target after a rejection."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.distributions import normalise
from resispec.verifiers import Draws, Law


@dataclass(frozen=True)
class Sibling:
    """One sibling that is tested.

    target, draft: (..., V), the law that it is tested against and the one that it was drawn from. token:
    (..., 1) int64. rank: how many siblings came before.
    """

    target: Tensor
    draft: Tensor
    token: Tensor
    rank: int

    @property
    def p(self) -> Tensor:
        """The token's mass (..., 1) under the target."""
        return self.target.gather(-1, self.token)

    @property
    def q(self) -> Tensor:
        """The token's mass (..., 1) under the draft, never 0."""
        return self.draft.gather(-1, self.token).clamp_min(torch.finfo(self.draft.dtype).tiny)


class Sequential:
    """Tests one sibling after another. As it stands it is the standard rule; a fault overrides a part."""

    def chance(self, sibling: Sibling) -> Tensor:
        """The probability (..., 1) of acceptance."""
        return (sibling.p / sibling.q).clamp_max(1)

    def left(self, sibling: Sibling) -> Tensor:
        """The law (..., V) from which the walk continues after a rejection."""
        return normalise((sibling.target - sibling.draft).clamp_min(0), sibling.target)

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`."""
        target, alive, select = target_probs, torch.ones_like(target_probs[..., :1]), []
        tests = zip(draws.laws(draft_probs, siblings), siblings.split(1, -1), strict=True)
        for rank, (draft, token) in enumerate(tests):
            sibling = Sibling(target, draft, token, rank)
            chance = self.chance(sibling)
            select.append(alive * chance)
            alive, target = alive * (1 - chance), self.left(sibling)
        return Law(torch.cat(select, -1), target)
