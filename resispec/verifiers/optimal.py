r"""The best exact rule for independent draws: it attains the ceiling of optimal transport in closed form.

The highest acceptance is 1 - d with d = max_H [Q(H)^B - P(H)] over prefixes H of the tokens in increasing
order of p / q (Hu et al., arXiv 2502.18779). It is reached in two steps, the decomposition of Khisti et al.
(2410.18234). First one sibling is chosen so that it has the law
    m = clip(p, c0 q, c1 q),
with c0 and c1 such that m sums to 1 and stays within what B siblings allow, M(H) >= Q(H)^B for every prefix.
Then it is tested as in plain speculative sampling: accepted with probability min(1, p / m), else the walk
continues from norm(max(p - m, 0)). Unlike a proxy that depends on the rejected token, m is fixed beforehand,
so the output has law p.

To choose, every sibling draws a score, whose law depends on the sibling's token alone, and the largest score
wins. The density of a score is constant between knots, so the chance of each sibling to win is an integral of
polynomials between knots, which is computed exactly.

Capital letters are sums: P_k, Q_k and M_k are the masses of the first k tokens, or groups of tokens, in
increasing order of p / q.
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
from resispec.verifiers.registry import register

LEAST_CHANCE = 1e-20
"""In place of chances of 0, whose logarithm is infinite; far below rounding."""


@register("optimal")
@dataclass(frozen=True)
class Optimal:
    """Tokens with nearly equal p / q form a group and share one value of m / q; exact for any grouping.

    bins: number of groups, equally wide in sqrt(p / q) from 0 to sqrt(B); larger ratios than B make no
    difference. What grouping gives away in acceptance is below a thousandth of it for 1024 bins, and
    inversely proportional to their number. With 0 every token is its own group and nothing is given away, at
    the cost of sorting the vocabulary. Raises InvalidInput for 1 bin or a negative number.
    """

    bins: int = 1024
    # With a target of mass a, d >= 1 - a since all tokens are a prefix, so m >= c0 q >= d q >= (1 - a) q; see
    # `lookahead`.
    is_bounded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bins != 0 and self.bins < 2:
            raise InvalidInput(f"optimal: {self.bins} bins; allowed: at least 2, or 0 for one per token")

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`; sums are taken in float64. Raises InvalidInput for draws other than IID."""
        require_draws("optimal", draws, (Draws.IID,))
        groups, ratio, log_chain = self._proxy(target_probs, draft_probs, siblings.shape[-1])
        # On a CPU gather takes a third of the time where there is a leading dimension.
        chosen = ratio.to(draft_probs.dtype)[None].gather(-1, groups[None])[0].mul_(draft_probs)
        tiny = torch.finfo(target_probs.dtype).tiny
        proposed = chosen.gather(-1, siblings).clamp_min(tiny)
        accept = (target_probs.gather(-1, siblings) / proposed).clamp_max(1)
        select = _win_chances(log_chain, groups.gather(-1, siblings)).to(accept.dtype) * accept
        residual = (target_probs - chosen).clamp_min_(0)
        return Law(select, normalise(residual, target_probs, null_mass(target_probs)))

    def _proxy(self, p: Tensor, q: Tensor, num_siblings: int) -> tuple[Tensor, Tensor, Tensor]:
        """The law m and the scores that choose by it.

        Returns every token's group (..., V) int64 and, for each of the K groups, m / q and the law of its
        scores as `_log_chain` encodes it, both (..., K) float64.
        """
        groups, num_groups = self._groups(p, q, num_siblings)
        return groups, *_coupling(_sums(p, groups, num_groups), _sums(q, groups, num_groups), num_siblings)

    def _groups(self, p: Tensor, q: Tensor, num_siblings: int) -> tuple[Tensor, int]:
        """Every token's group (..., V) int64, numbered in increasing order of p / q, and their number."""
        if self.bins == 0:
            ratio = p.double() / q.double().clamp_min(torch.finfo(torch.float64).tiny)
            order = ratio.argsort(-1)
            ranks = torch.arange(p.shape[-1], device=p.device).expand_as(order)
            return torch.empty_like(order).scatter_(-1, order, ranks), p.shape[-1]
        last = self.bins - 1
        place = (p / q).mul_(last**2 / num_siblings).sqrt_()
        # Groups are indices, so they must be numbers. 0 / 0 belongs to a token without mass, whose group does
        # not matter; a NaN in p or q is not hidden by this, since it makes the groups' sums NaN.
        return place.nan_to_num_(0.0).clamp_max_(last).long(), self.bins


def _sums(probs: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """The mass (..., K) of every group, float64."""
    zeros = torch.zeros(*probs.shape[:-1], num_groups, dtype=torch.float64, device=probs.device)
    return zeros.scatter_add_(-1, groups, probs.double())


def _coupling(p: Tensor, q: Tensor, num_siblings: int) -> tuple[Tensor, Tensor]:
    """m / q of every group and `_log_chain` of the groups, (..., K).

    p, q: (..., K), masses of the groups in increasing order of p / q.
    """
    q = q / q.sum(-1, keepdim=True)
    # Without `cummax` a group that has no tokens would have the ratio 0, out of order. c1 is at most B, so
    # larger ratios are clipped to it in any case, and infinite ones, where q = 0, become numbers.
    ratio = (p / q.clamp_min(torch.finfo(q.dtype).tiny)).cummax(-1).values.clamp_max(num_siblings)
    low, high, below = _clips(p, q, ratio, num_siblings)
    ratio = torch.minimum(torch.maximum(ratio, low), high)
    return ratio, _log_chain(ratio, q, below, num_siblings)


def _clips(p: Tensor, q: Tensor, ratio: Tensor, num_siblings: int) -> tuple[Tensor, Tensor, Tensor]:
    """c0 and c1 (..., 1), and the prefix sums Q_0 = 0, Q_1, ..., Q_K = 1 of q, (..., K + 1).

    c0 raises the tokens of smallest p / q until they have gained the mass d: c0 = min_k (P_k + d) / Q_k.
    c1 lowers those of largest p / q until they have lost d: c1 = max_k (1 - P_k - d) / (1 - Q_k). For
    tiny 1 - Q_k this ratio is all rounding, so the maximum is not searched for. Clipping at the ratio of
    token k takes 1 - P_k - ratio (1 - Q_k) away, less and less for larger k, so counting the tokens at which
    that is more than d gives the k of the maximum.
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
    r"""c_k = log h_1 + ... + log h_k, (..., K): what is needed of the law of the scores.

    ratio: (..., K), r = m / q. q: (..., K). below: (..., K + 1), the sums Q_0, ..., Q_K.
    There is a knot b_k for every group k, in increasing order, and b_0 = 0. The score of a token in group k
    is drawn like this: start with J = k; toss coins, and as long as the coin of group J shows heads, which it
    does with probability h_J, lower J by 1; then draw the score uniformly from (b_{J-1}, b_J]. So it is at
    most b_j, j < k, with probability h_{j+1} ... h_k = exp(c_k - c_j).

    With b_k the largest root of b^B = M_k + r_k (b - Q_k), and h_k = (b_{k-1} - Q_{k-1}) / (b_k - Q_{k-1}),
    the score of a token that is drawn from q is uniform on [0, 1], and the largest of B scores belongs to
    group k with probability m_k. (The largest score has the distribution function t^B. Group k = 1, 2, ... in
    turn replaces the slope of this function on (Q_{k-1}, b_k] by its average, after which the function agrees
    with M at Q_0, ..., Q_k.)
    """
    start = below[..., :-1]
    knots = _largest_root(ratio, ratio * below[..., 1:] - (ratio * q).cumsum(-1), num_siblings)
    knots = torch.maximum(knots, below[..., 1:]).clamp_max(1)
    before = torch.nn.functional.pad(knots[..., :-1], (1, 0))
    # A group that has no tokens and where M_k = Q_k^B gives 0 / 0; nothing stops there, as if all coins
    # showed heads.
    heads = torch.where(knots > start, (before - start) / (knots - start), 1.0)
    return heads.clamp(LEAST_CHANCE, 1).log().cumsum(-1)


def _largest_root(slope: Tensor, drop: Tensor, power: int) -> Tensor:
    """The largest b with b^n = slope * b - drop; slope, drop >= 0, elementwise.

    Substituting b = slope^(1 / (n - 1)) y leaves y^n - y + a = 0. The largest root falls from y = 1 at a = 0
    to y = n^(-1 / (n - 1)) at the largest a that has a root, where two roots meet. Newton's method starts
    from a formula that is right at both ends, and everywhere for n = 2; the more siblings, the less exact it
    is, and the more steps are taken.
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
        # Where the two roots meet, the function and its slope are both 0, so the root is known to half of the
        # digits only.
        y = (y - (up * y - y + a) / (power * up - 1).clamp_min(1e-8)).clamp_min(least)
    return scale * y


def _win_chances(log_chain: Tensor, groups: Tensor) -> Tensor:
    """The probability (..., B) float64 that each sibling, by its group (..., B), has the largest score.

    The score of sibling i has a distribution function F_i that is linear between the knots. At the knots
    below that of its own group g it is F_i(b_k) = exp(c_g - c_k), and from there on 1. The chance is the
    integral of dF_i prod_{j != i} F_j; between two knots that is a polynomial of degree B - 1, for which
    Gauss-Legendre quadrature is exact.
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
