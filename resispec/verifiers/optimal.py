r"""The best exact rule for independent draws: it attains the ceiling of optimal transport in closed form.

The highest acceptance is 1 - d with d = max_H [Q(H)^B - P(H)] over prefixes H of the tokens in increasing order of p / q (Hu et
al., arXiv 2502.18779). It is reached in two steps, the decomposition of Khisti et al. (2410.18234). First one sibling is chosen
so that it has the law
    m = clip(p, c0 q, c1 q),   c0 and c1 such that m sums to 1 and stays within what B siblings allow, M(H) >= Q(H)^B.
Then it is tested as in plain speculative sampling: accepted with probability min(1, p / m), else continued from
norm(max(p - m, 0)). Unlike a proxy that depends on the rejected token, m is fixed beforehand, so the output has law p.

To choose, every sibling draws a score that depends on its token alone, and the largest wins. A token's scores are uniform in
pieces, so the chance of each sibling to win is an integral of polynomials, which is taken exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from resispec.distributions import normalise, null_mass
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws, Law, require_draws

LEAST_CHANCE = 1e-20
"""In place of chances of 0, whose logarithm is infinite; far below rounding."""


@dataclass(frozen=True)
class Optimal:
    """Tokens with nearly equal p / q share one value of m / q: their group's. The rule is exact for any grouping.

    bins: number of groups, equally wide in sqrt(p / q) up to the largest ratio that matters, B. What they give away in acceptance
    is below a thousandth of it for 1024 bins, and falls in proportion. 0: every token is its own group and nothing is given away,
    at the cost of sorting the vocabulary.
    """

    bins: int = 1024
    # With a target of mass a, d >= 1 - a since all tokens are a prefix, so m >= c0 q >= d q >= (1 - a) q; see `lookahead`.
    is_bounded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bins != 0 and self.bins < 2:
            raise InvalidInput(f"optimal: {self.bins} bins; allowed: at least 2, or 0 for one per token")

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`. Raises InvalidInput unless the draws are independent. Sums over tokens are taken in float64."""
        require_draws("optimal", draws, (Draws.IID,))
        groups, ratio, log_chain = self._plan(target_probs, draft_probs, siblings.shape[-1])
        # On a CPU gather takes a third of the time where there is a leading dimension.
        chosen = ratio.to(draft_probs.dtype)[None].gather(-1, groups[None])[0].mul_(draft_probs)
        tiny = torch.finfo(target_probs.dtype).tiny
        accept = (target_probs.gather(-1, siblings) / chosen.gather(-1, siblings).clamp_min(tiny)).clamp_max(
            1
        )
        select = _win_chances(log_chain, groups.gather(-1, siblings)).to(accept.dtype) * accept
        residual = (target_probs - chosen).clamp_min_(0)
        return Law(select, normalise(residual, target_probs, null_mass(target_probs)))

    def _plan(self, p: Tensor, q: Tensor, num_siblings: int) -> tuple[Tensor, Tensor, Tensor]:
        """The group (..., V) int64 of every token, and of every group m / q and the law of its scores, (..., K) float64."""
        groups, num_groups = self._groups(p, q, num_siblings)
        return groups, *_coupling(_sums(p, groups, num_groups), _sums(q, groups, num_groups), num_siblings)

    def _groups(self, p: Tensor, q: Tensor, num_siblings: int) -> tuple[Tensor, int]:
        """The group (..., V) int64 of every token, in increasing order of p / q, and the number of groups."""
        if self.bins == 0:
            ratio = p.double() / q.double().clamp_min(torch.finfo(torch.float64).tiny)
            order = ratio.argsort(-1)
            ranks = torch.arange(p.shape[-1], device=p.device).expand_as(order)
            return torch.empty_like(order).scatter_(-1, order, ranks), p.shape[-1]
        last = self.bins - 1
        place = (p / q).mul_(last**2 / num_siblings).sqrt_()
        # An index is a number whatever p and q are: 0 / 0 has no mass to place, and NaN in p or q goes on in the sums.
        return place.nan_to_num_(0.0).clamp_max_(last).long(), self.bins


def _sums(probs: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """The mass (..., K) of every group, float64."""
    zeros = torch.zeros(*probs.shape[:-1], num_groups, dtype=torch.float64, device=probs.device)
    return zeros.scatter_add_(-1, groups, probs.double())


def _coupling(p: Tensor, q: Tensor, num_siblings: int) -> tuple[Tensor, Tensor]:
    """m / q of every group, and the law of the scores: see `_log_chain`. p, q: (..., K) masses, in increasing order of p / q."""
    q = q / q.sum(-1, keepdim=True)
    # A group without tokens repeats the one before, and c1 is at most B, also for tokens that the draft cannot propose.
    ratio = (p / q.clamp_min(torch.finfo(q.dtype).tiny)).cummax(-1).values.clamp_max(num_siblings)
    low, high, below = _clips(p, q, ratio, num_siblings)
    ratio = torch.minimum(torch.maximum(ratio, low), high)
    return ratio, _log_chain(ratio, q, below, num_siblings)


def _clips(p: Tensor, q: Tensor, ratio: Tensor, num_siblings: int) -> tuple[Tensor, Tensor, Tensor]:
    """c0 and c1 (..., 1), and the prefix sums of q from 0 (..., K + 1), the last of them 1.

    c0 adds the mass d to the tokens of smallest p / q: the tokens up to k at c0 hold P_k + d, and the least such c0 is the one.
    c1 takes d from those of largest p / q. There a maximum over k would be all rounding where little of q is left, so the piece
    of its equation is counted instead: from which tokens on a clip at their own ratio takes too little.
    """
    target, below = (torch.nn.functional.pad(mass.cumsum(-1), (1, 0)) for mass in (p, q))
    below = below / below[..., -1:]
    gap = (below**num_siblings - target).amax(-1, keepdim=True)
    tiny = torch.finfo(p.dtype).tiny
    low = ((target + gap) / below.clamp_min(tiny))[..., 1:].amin(-1, keepdim=True)
    left, free = 1 - target, 1 - below
    taken = left[..., 1:] - ratio * free[..., 1:]
    last = (taken > gap).sum(-1, keepdim=True)
    high = (left.gather(-1, last) - gap) / free.gather(-1, last).clamp_min(tiny)
    return low.clamp_max(1), high.clamp(1, num_siblings), below


def _log_chain(ratio: Tensor, q: Tensor, below: Tensor, num_siblings: int) -> Tensor:
    r"""log Pr(score <= b_k) (..., K) for a token above all groups; differences hold for every token, see `_win_chances`.

    A score of group k is found by going down from J = k while a coin of probability h_J shows heads, then drawing uniformly from
    (b_{J-1}, b_J]. With M_k = m of the groups up to k, b_k is the largest root of b^B = M_k + r_k (b - Q_k), r = m / q, and
    h_k = (b_{k-1} - Q_{k-1}) / (b_k - Q_{k-1}): averaging the slope of t^B over (Q_{k-1}, b_k], group after group, lays its
    graph onto that of M. So scores are uniform on [0, 1] over the tokens that q draws, and the largest of B belongs to k with
    probability m_k.
    """
    start = below[..., :-1]
    knots = _largest_root(ratio, ratio * below[..., 1:] - (ratio * q).cumsum(-1), num_siblings)
    knots = torch.maximum(knots, below[..., 1:]).clamp_max(1)
    before = torch.nn.functional.pad(knots[..., :-1], (1, 0))
    # A group without tokens, (0 - 0) / (0 - 0) where M touches t^B, is passed through.
    heads = torch.where(knots > start, (before - start) / (knots - start), 1.0)
    return heads.clamp(LEAST_CHANCE, 1).log().cumsum(-1)


def _largest_root(slope: Tensor, drop: Tensor, power: int) -> Tensor:
    """The largest b with b^n = slope * b - drop; slope, drop >= 0, elementwise.

    b = slope^(1 / (n - 1)) y leaves y^n - y + a = 0 with a from 0, where y = 1, to where two roots meet, at y = n^(-1 / (n - 1)).
    Newton's start is right at both ends and is the solution for n = 2; it is worse for more siblings.
    """
    if power == 1:  # a line has no second root, and a single sibling always wins
        return torch.ones_like(slope)
    scale = slope ** (1 / (power - 1))
    least = power ** (-1 / (power - 1))
    most = least * (1 - 1 / power)
    slope_at_least = least * (2 / power) ** 0.5
    a = (drop / (slope * scale).clamp_min(torch.finfo(slope.dtype).tiny)).clamp(0, most)
    s = (1 - a / most).sqrt()
    y = least + s * (slope_at_least + s * (1 - least - slope_at_least))
    for _ in range(power.bit_length() + 1):
        up = y ** (power - 1)
        # Where the roots meet both terms vanish, and the root is known to the square root of the precision only.
        y = (y - (up * y - y + a) / (power * up - 1).clamp_min(1e-8)).clamp_min(least)
    return scale * y


def _win_chances(log_chain: Tensor, groups: Tensor) -> Tensor:
    """The probability (..., B) that each sibling has the largest score, for siblings of the given groups (..., B); float64.

    The score of sibling i has F_i(b_k) = exp(chain_i - chain_k) below its group and 1 from there on, and is uniform in between.
    Where every piece is scaled to length 1, the chance is the integral of dF_i prod_{j != i} F_j: Gauss-Legendre is exact for it.
    """
    own = log_chain.gather(-1, groups)[..., None]
    high = (own - log_chain[..., None, :]).clamp_max(0).exp()
    low = torch.nn.functional.pad(high[..., :-1], (1, 0))
    rise = high - low
    chances = torch.zeros_like(own[..., 0])
    tiny = torch.finfo(rise.dtype).tiny
    for node, weight in _gauss_legendre((groups.shape[-1] + 1) // 2):
        reached = low + node * rise
        chances = chances + weight * (rise / reached.clamp_min(tiny) * reached.prod(-2, keepdim=True)).sum(-1)
    return chances


@lru_cache(maxsize=32)
def _gauss_legendre(num_nodes: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights on [0, 1]; exact for polynomials of degree below 2 * num_nodes."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    return tuple(zip(((nodes + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))


def rule(bins: int = 1024) -> Optimal:
    """The optimal rule for independent draws; for the option see `Optimal`. Raises InvalidInput for too few bins."""
    return Optimal(bins)
