"""Greedy draws: siblings are chosen, and only the last is drawn (Hu et al., arXiv 2502.18779)."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from resispec.distributions import counted, draw, without
from resispec.draws.base import DrawsKind, known
from resispec.draws.point_mass import largest_mass


@known
class Greedy(DrawsKind):
    """The set D of q's B - 1 likeliest tokens, then a draw from r: q without D, renormalised."""

    name = "greedy"
    are_distinct = True

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`."""
        largest = draft_probs.topk(count - 1, dim=-1).indices
        return torch.cat((largest, draw(without(draft_probs, largest), 1, generator)), -1)

    def laws(self, draft_probs: Tensor, siblings: Tensor) -> Iterator[Tensor]:
        """See `DrawsKind.laws`: point masses, and r for the last sibling."""
        for token in siblings.split(1, dim=-1)[:-1]:
            yield torch.zeros_like(draft_probs).scatter(-1, token, 1.0)
        yield without(draft_probs, siblings[..., :-1])

    def weights(self, draft_probs: Tensor, siblings: Tensor) -> Tensor:
        """See `DrawsKind.weights`: 0 unless all but the last are the tuple that `draw` gives."""
        largest = draft_probs.topk(siblings.shape[-1] - 1, dim=-1).indices
        return (siblings[..., :-1] == largest).all(-1) * super().weights(draft_probs, siblings)

    def least_chances(self, draft_chances: Tensor) -> Tensor:
        """See `DrawsKind.least_chances`."""
        return draft_chances

    def ceiling(self, target_probs: Tensor, draft_probs: Tensor, num_siblings: int) -> Tensor:
        """See `DrawsKind.ceiling`: P(D) + sum min(p, r) outside D.

        r is uniform if q has no mass there. Each token of D adds (p - r)+ to the sum of min(p, r)
        over all tokens, so among tokens of equal q the ones with the largest p are the best D.
        """
        p, q, num_chosen = target_probs, draft_probs, num_siblings - 1
        masses = counted(q)
        rest = masses.sort(-1, descending=True).values[..., num_chosen:].sum(-1, keepdim=True)
        uniform = (masses == 0).to(q.dtype) / (q.shape[-1] - num_chosen)
        r = torch.where(rest > 0, masses / rest, uniform)
        common = torch.minimum(p, r)
        return common.sum(-1) + largest_mass(p - common, q, num_chosen)
