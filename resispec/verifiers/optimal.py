"""The best exact rule for independent draws attains optimal transport's ceiling in closed form.

The rule has two steps, the decomposition of Khisti et al. (arXiv 2410.18234). First one sibling
is chosen by the largest score, so that its token has the law m of `max_score_transport`, with
g(t) = t^B for B siblings. Then that sibling is tested as in plain speculative sampling: accepted
with probability min(1, p / m), else the walk continues from norm(max(p - m, 0)). Unlike a proxy
that depends on the rejected token, m is fixed beforehand, so the output has law p.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resispec.distributions import normalise, null_mass, quotient
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws, DrawsKind, Law, require_draws
from resispec.verifiers.max_score_transport import (
    clips,
    gauss_legendre,
    group_sums,
    log_chain,
    prefix_sums,
    ratio_groups,
)
from resispec.verifiers.registry import register


@register("optimal")
@dataclass(frozen=True)
class Optimal:
    """Tokens with nearly equal p / q form a group and share one value of m / q;
    exact for any grouping.

    bins: number of groups, equally wide in sqrt(p / q) from 0 to sqrt(B); larger ratios than B make
    no difference. Grouping loses less than a thousandth of the acceptance with 1024 bins, and the
    loss is inversely proportional to their number. With 0 every token is its own group and nothing
    is lost, at the cost of sorting the vocabulary. Raises InvalidInput for 1 bin or a negative
    number.
    """

    bins: int = 1024
    # With a target of mass a, d >= 1 - a since all tokens are a prefix, so m >= c0 q >= d q >= (1 -
    # a) q; see `lookahead`.
    is_bounded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bins != 0 and self.bins < 2:
            raise InvalidInput(
                f"optimal: {self.bins} bins; allowed: at least 2, or 0 for one per token"
            )

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`; sums are taken in float64.

        Raises InvalidInput for draws other than IID.
        """
        require_draws("optimal", draws, Draws.IID)
        groups, ratio, log_chain = self._proxy(target_probs, draft_probs, siblings.shape[-1])
        # On a CPU gather takes a third of the time if there is a leading dimension.
        proxy = ratio.to(draft_probs.dtype)[None].gather(-1, groups[None])[0].mul_(draft_probs)
        accept = quotient(target_probs.gather(-1, siblings), proxy.gather(-1, siblings)).clamp_max(
            1
        )
        select = _win_chances(log_chain, groups.gather(-1, siblings)).to(accept.dtype) * accept
        residual = (target_probs - proxy).clamp_min_(0)
        return Law(select, normalise(residual, target_probs, null_mass(target_probs)))

    def _proxy(self, p: Tensor, q: Tensor, num_siblings: int) -> tuple[Tensor, Tensor, Tensor]:
        """The law m and the scores that choose a sibling with the law m.

        Returns every token's group (..., V) int64, numbered in increasing order of p / q, and, for
        each of the K groups, m / q and the law of its scores as `log_chain` encodes it, both
        (..., K) float64.
        """
        if self.bins:
            groups = ratio_groups(p, q, num_siblings, self.bins)
        else:
            groups = quotient(p.double(), q.double()).argsort(-1).argsort(-1)  # the tokens' ranks
        return groups, *_coupling(*group_sums(p, q, groups, self.bins or p.shape[-1]), num_siblings)


def _coupling(p: Tensor, q: Tensor, num_siblings: int) -> tuple[Tensor, Tensor]:
    """The ratio m / q of each group and `log_chain` of the groups, (..., K) each.

    p, q: (..., K), masses of the groups in increasing order of p / q.
    """
    q = q / q.sum(-1, keepdim=True)
    # Without `cummax` a group that has no tokens would have the ratio 0, out of order. c1 is at
    # most B, so larger ratios are clipped in any case, and infinite ratios, where q = 0, become
    # numbers.
    ratio = quotient(p, q).cummax(-1).values.clamp_max(num_siblings)
    below = prefix_sums(q)
    low, high = clips(p, ratio, below, below**num_siblings)
    ratio = torch.minimum(torch.maximum(ratio, low), high.clamp(1, num_siblings))
    knots = _largest_root(ratio, ratio * below[..., 1:] - (ratio * q).cumsum(-1), num_siblings)
    return ratio, log_chain(torch.maximum(knots, below[..., 1:]).clamp_max(1), below)


def _largest_root(slope: Tensor, drop: Tensor, power: int) -> Tensor:
    """The largest b with b^n = slope * b - drop; slope, drop >= 0, elementwise.

    Substituting b = slope^(1 / (n - 1)) y leaves y^n - y + a = 0. The largest root falls from y = 1
    at a = 0 to y = n^(-1 / (n - 1)) at the largest a that has a root, where two roots meet.
    Newton's method starts from a formula that is right at both ends, and everywhere for n = 2; with
    more siblings the formula is less exact, and more steps are taken.
    """
    if power == 1:  # a line has no second root, and a single sibling always wins
        return torch.ones_like(slope)
    scale = slope ** (1 / (power - 1))
    least = power ** (-1 / (power - 1))
    most = least * (1 - 1 / power)
    slope_at_least = least * (2 / power) ** 0.5
    a = quotient(drop, slope * scale).clamp(0, most)
    s = (1 - a / most).sqrt()
    y = least + s * (slope_at_least + s * (1 - least - slope_at_least))
    for _ in range(power.bit_length() + 1):
        factor = y ** (power - 1)
        # Where the two roots meet, the function and its slope are both 0, so the root is known to
        # half of the digits only.
        y = (y - (factor * y - y + a) / (power * factor - 1).clamp_min(1e-8)).clamp_min(least)
    return scale * y


def _win_chances(log_chain: Tensor, groups: Tensor) -> Tensor:
    """The chance (..., B) float64 of each sibling, given its group (..., B), to score highest.

    The score of sibling i has a distribution function F_i that is linear between the knots. At the
    knots below that of its own group g it is F_i(b_k) = exp(c_g - c_k), and from there on 1. The
    chance is the integral of dF_i prod_{j != i} F_j; between two knots that is a polynomial of
    degree B - 1, for which Gauss-Legendre quadrature is exact.
    """
    chain = log_chain.gather(-1, groups)[..., None]
    high = (chain - log_chain[..., None, :]).clamp_max(0).exp()
    low = torch.nn.functional.pad(high[..., :-1], (1, 0))
    rise = high - low
    chances = torch.zeros_like(chain[..., 0])
    for node, weight in gauss_legendre((groups.shape[-1] + 1) // 2):
        values = low + node * rise
        chances = chances + weight * (quotient(rise, values) * values.prod(-2, keepdim=True)).sum(
            -1
        )
    return chances
