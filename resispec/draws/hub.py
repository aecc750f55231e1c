"""Pairs that always hold the draft's likeliest token: SpecHub (arXiv 2411.05289)."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from resispec.distributions import draw, without
from resispec.draws.base import DrawsKind


class Hub(DrawsKind):
    """Two siblings: the first is drawn from q, the second is the hub a, q's likeliest token.

    If the first sibling is the hub itself, the second is drawn from q without a, renormalised. So
    the other token of a pair has the law r = q without a, whichever comes first. `Hub` is not among
    the known kinds, since it has no meaning for more than two siblings: `draws: {_target_:
    resispec.draws.Hub}`.
    """

    name = "hub"
    can_be_cut = True
    are_distinct = True
    most_siblings = 2

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`; `count` is 1 or 2."""
        first = draw(draft_probs, 1, generator)
        if count == 1:
            return first
        hub = draft_probs.argmax(-1, keepdim=True)
        other = draw(without(draft_probs, hub), 1, generator)
        return torch.cat((first, torch.where(first == hub, other, hub)), -1)

    def laws(self, draft_probs: Tensor, siblings: Tensor) -> Iterator[Tensor]:
        """See `DrawsKind.laws`."""
        yield draft_probs
        if siblings.shape[-1] > 1:
            hub = draft_probs.argmax(-1, keepdim=True)
            point_mass = torch.zeros_like(draft_probs).scatter(-1, hub, 1.0)
            yield torch.where(siblings[..., :1] == hub, without(draft_probs, hub), point_mass)
