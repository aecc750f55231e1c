"""Siblings that are chosen, not drawn: EAGLE-2's top-k (arXiv 2406.16858)."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from resispec.draws.base import DrawsKind, known


@known
class PointMass(DrawsKind):
    """The likeliest tokens of q, in descending order.

    Every sibling's law is a point mass on its token.
    """

    name = "point_mass"
    can_be_cut = True
    are_distinct = True
    are_random = False

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`; the generator is not used."""
        return draft_probs.topk(count, dim=-1).indices

    def laws(self, draft_probs: Tensor, siblings: Tensor) -> Iterator[Tensor]:
        """See `DrawsKind.laws`: 1 at the sibling's own token, however the drafter chose it."""
        for token in siblings.split(1, dim=-1):
            yield torch.zeros_like(draft_probs).scatter(-1, token, 1.0)

    def least_chances(self, draft_chances: Tensor) -> Tensor:
        """See `DrawsKind.least_chances`."""
        return torch.ones_like(draft_chances)

    def ceiling(self, target_probs: Tensor, draft_probs: Tensor, num_siblings: int) -> Tensor:
        """See `DrawsKind.ceiling`: the mass of the siblings under p."""
        return largest_mass(target_probs, draft_probs, num_siblings)


def largest_mass(p: Tensor, q: Tensor, count: int) -> Tensor:
    """The largest mass (...) under p (..., V) that the `count` likeliest of q (..., V) can have.

    Among tokens of equal q, the ones with the largest p count, since nothing says which were
    chosen.
    """
    if count == 0:
        return torch.zeros_like(p[..., 0])
    least = q.topk(count, dim=-1).values[..., -1:]
    num_sure = (q > least).sum(-1, keepdim=True)
    ties = torch.where(q == least, p, 0.0).sort(-1, descending=True).values
    is_chosen = torch.arange(p.shape[-1], device=p.device) < count - num_sure
    return torch.where(q > least, p, 0.0).sum(-1) + torch.where(is_chosen, ties, 0.0).sum(-1)
