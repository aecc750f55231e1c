"""K-SEQ, the sequential rule of SpecTr (arXiv 2310.15141).

A sibling passes its test with probability min(1, p(x) / (r q(x))). Siblings are tested in turn with
the same factor r, so the residual is the same whatever was rejected. The acceptance is at least
1 - 1/e of the best acceptance that an exact rule can have with independent draws.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resispec.distributions import normalise, null_mass, quotient
from resispec.verifiers.base import Draws, DrawsKind, Law, require_draws
from resispec.verifiers.registry import register


@register("kseq")
@dataclass(frozen=True)
class KSeq:
    """K-SEQ with the least factor r for which the rule is exact.

    With b(r) = sum min(p / r, q), a test passes with probability b, and at least one of B tests
    with A = 1 - (1 - b)^B. Siblings then emit min(p / r, q) A / b, which stays below p iff
    A / b <= r. Near p = q many factors accept almost equally often, and rounding chooses among
    them.
    """

    # A test passes with probability a p / q at most, and A / b >= 1 keeps what the residual adds
    # below the rest; see `lookahead`.
    is_bounded: ClassVar[bool] = True

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`. Raises InvalidInput unless the draws are independent."""
        require_draws("kseq", draws, Draws.IID)
        factor = _least_factor(target_probs, draft_probs, siblings.shape[-1]).to(target_probs.dtype)
        proposed = factor * draft_probs.gather(-1, siblings)
        accept = quotient(target_probs.gather(-1, siblings), proposed).clamp_max(1)
        passed = torch.cat((torch.zeros_like(factor), accept[..., :-1]), -1)
        select = accept * (1 - passed).cumprod(-1)
        common = torch.minimum(target_probs / factor, draft_probs)
        chance = common.sum(-1, keepdim=True, dtype=torch.float64)
        ratio = _mean_tests(chance, siblings.shape[-1]).to(target_probs.dtype)
        residual = (target_probs - common * ratio).clamp_min(0)
        return Law(select, normalise(residual, target_probs, null_mass(target_probs)))


def _least_factor(p: Tensor, q: Tensor, count: int) -> Tensor:
    """The least r (..., 1) in [1, B] with A / b <= r, approached from above, float64.

    A / b falls as b rises, and b falls as r rises. At any r, A / b lies between r and the solution,
    so every step cuts the interval in the middle and then moves the new end from the middle to its
    A / b.
    """
    low = torch.ones_like(p[..., :1], dtype=torch.float64)
    if count == 1:  # one sibling is tested once, with the factor 1
        return low
    high = low * count
    for _ in range(16):  # each step at least halves the interval, most leave a quarter
        middle = (low + high) / 2
        # sum min(p, r q) = r b
        common = torch.minimum(middle.to(q.dtype) * q, p).sum(-1, keepdim=True, dtype=torch.float64)
        tests = _mean_tests(common / middle, count)
        is_exact = tests <= middle
        low, high = torch.where(is_exact, low, tests), torch.where(is_exact, tests, high)
    return high


def _mean_tests(chance: Tensor, count: int) -> Tensor:
    """A / b, the mean number of tests if B siblings pass with probability b; B for b = 0."""
    tiny = torch.finfo(chance.dtype).tiny
    chance = chance.clamp(tiny, 1)
    return -torch.expm1(count * torch.log1p(-chance)) / chance
