"""Independent draws with replacement: SpecInfer (arXiv 2305.09781)."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from resispec.distributions import draw
from resispec.draws.base import DrawsKind, known


@known
class Iid(DrawsKind):
    """Every sibling is drawn from q, which no rejection changes; tokens may be drawn twice."""

    name = "iid"
    are_independent = True

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`."""
        return draw(draft_probs, count, generator)

    def laws(self, draft_probs: Tensor, siblings: Tensor) -> Iterator[Tensor]:
        """See `DrawsKind.laws`: q for every sibling."""
        for _ in range(siblings.shape[-1]):
            yield draft_probs

    def least_chances(self, draft_chances: Tensor) -> Tensor:
        """See `DrawsKind.least_chances`."""
        return draft_chances

    def ceiling(self, target_probs: Tensor, draft_probs: Tensor, num_siblings: int) -> Tensor:
        """See `DrawsKind.ceiling`: Pr(all siblings in H) = Q(H)^n."""
        p, q = in_order(target_probs, draft_probs / draft_probs.sum(-1, keepdim=True))
        # The empty set, which gives 0, is not among the prefixes; the last clamp stands for it.
        return 1 + (p.cumsum(-1) - q.cumsum(-1).clamp_max(1) ** num_siblings).amin(-1).clamp_max(0)


def in_order(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Sort p and q (..., V) by increasing p / q; tokens of q = 0 come last and only add to P(H)."""
    order = torch.where(q > 0, p / q, torch.inf).argsort(-1)
    return p.gather(-1, order), q.gather(-1, order)
