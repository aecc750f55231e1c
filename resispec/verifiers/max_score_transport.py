r"""Optimal transport from drafts to a target by largest score, for `optimal` and `level_optimal`.

Drafts with law q compete by scores: the largest score wins, and a score's law depends on its
draft's token alone. Averaged over tokens a score is uniform on [0, 1], and a draft with score t
wins with chance g'(t): for B equal drafts g(t) = t^B counts the wins of all of them. So tokens from
a set H win with probability at most 1 - g(1 - Q(H)), whatever the scores, and any law m with
M(H) >= g(Q(H)) for every prefix H of the tokens, in increasing order of p / q, can be reached. The
reachable law that agrees best with p is

    m = clip(p, c0 q, c1 q),

and sum min(p, m) = 1 - d with d = max_H [g(Q(H)) - P(H)] (Hu et al., arXiv 2502.18779, for equal
drafts).

Capital letters are sums: P_k, Q_k and M_k are the masses of the first k tokens, or groups of
tokens, in increasing order of p / q. Everything is batched over leading dimensions and in float64.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from resispec.distributions import quotient


def ratio_groups(p: Tensor, q: Tensor, most: Tensor | float, num_groups: int) -> Tensor:
    """Each token's group (..., V) int64; groups are equally wide in sqrt(p / q).

    The last group begins at the ratio `most`, (..., 1). p, q: (..., V), of any sum.
    """
    last = num_groups - 1
    scale = last**2 / most
    place = (p / q).mul_(scale if isinstance(scale, float) else scale.to(q.dtype)).sqrt_()
    # Groups are indices, so they must be numbers. 0 / 0 belongs to a token without mass, whose
    # group does not matter; a NaN in p or q is not hidden by this, since it makes the groups' sums
    # NaN. A CPU converts floating point fast to int32 only.
    return place.nan_to_num_(0.0).clamp_max_(last).int().long()


def group_sums(p: Tensor, q: Tensor, groups: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """The masses (..., K) of every group under two laws, float64.

    p, q: (..., V). groups: (..., V) int64, each token's group. On a CPU adding to groups takes
    longest, and complex numbers do it for both laws at once.
    """
    pairs = torch.complex(p, q).to(torch.complex128)
    sums = pairs.new_zeros(*groups.shape[:-1], num_groups).scatter_add_(-1, groups, pairs)
    return sums.real.contiguous(), sums.imag.contiguous()


def prefix_sums(masses: Tensor) -> Tensor:
    """The sums Q_0 = 0, Q_1, ..., Q_K = 1, (..., K + 1), of masses (..., K) of any positive sum."""
    below = pad(masses.cumsum(-1), (1, 0))
    return quotient(below, below[..., -1:])


def clips(p: Tensor, ratio: Tensor, below: Tensor, reached: Tensor) -> tuple[Tensor, Tensor]:
    """The factors c0 and c1 of m = clip(p, c0 q, c1 q), (..., 1) each.

    p: (..., K), masses of the groups. ratio: (..., K), p / q, never decreasing. below:
    (..., K + 1), the sums Q_0 to Q_K. reached: (..., K + 1), the values of g at these sums.

    c0 raises the tokens of smallest p / q until they have gained the mass d:
    c0 = min_k (P_k + d) / Q_k. c1 lowers the tokens of largest p / q until they have lost d:
    c1 = max_k (1 - P_k - d) / (1 - Q_k). For tiny 1 - Q_k this ratio is all rounding, so the
    maximum is not searched for. Clipping at the ratio of token k takes the mass
    1 - P_k - ratio (1 - Q_k) away, less and less for larger k, so the number of tokens at which
    that is more than d is the k of the maximum.
    """
    target = pad(p.cumsum(-1), (1, 0))
    gap = (reached - target).amax(-1, keepdim=True)
    low = quotient(target + gap, below)[..., 1:].amin(-1, keepdim=True)
    rest, free = 1 - target, 1 - below
    cuts = rest[..., 1:] - ratio * free[..., 1:]
    last = (cuts > gap).sum(-1, keepdim=True)
    high = quotient(rest.gather(-1, last) - gap, free.gather(-1, last))
    return low.clamp_max(1), high


def log_chain(knots: Tensor, below: Tensor) -> Tensor:
    r"""The sums c_k = log h_1 + ... + log h_k, (..., K), which encode the law of the scores.

    knots: (..., K), b_1, ..., b_K, never decreasing; b_0 = 0. below: (..., K + 1), the sums Q_0,
    ..., Q_K. The score of a token in group k is drawn like this: start with J = k; toss coins, and
    as long as the coin of group J shows heads, which happens with probability h_J, lower J by 1;
    then draw the score uniformly from (b_{J-1}, b_J]. So it is at most b_j, j < k, with probability
    h_{j+1} ... h_k = exp(c_k - c_j).

    With b_k the largest root of g(b) = M_k + r_k (b - Q_k), where r = m / q, and
    h_k = (b_{k-1} - Q_{k-1}) / (b_k - Q_{k-1}), the score of a token that is drawn from q is
    uniform on [0, 1], and tokens of group k win with mass m_k. (Group k = 1, 2, ... in turn
    replaces the slope of g on (Q_{k-1}, b_k] by its average, after which g agrees with M at
    Q_0, ..., Q_k.)
    """
    start = below[..., :-1]
    before = pad(knots[..., :-1], (1, 0))
    # A group without tokens and with M_k = g(Q_k) gives 0 / 0; no score stops there, as if all
    # coins showed heads.
    heads = torch.where(knots > start, (before - start) / (knots - start), 1.0)
    return heads.clamp(1e-20, 1).log().cumsum(-1)  # log 0 is infinite; 1e-20 is far below rounding


class Curve:
    """A convex function g on [0, 1], linear between its knots, for each of K parents.

    positions, values: (K, R + 1), never decreasing, from 0 to 1.
    """

    def __init__(self, positions: Tensor, values: Tensor) -> None:
        self.positions, self.values = positions.contiguous(), values
        self.slopes = quotient(values.diff(dim=-1), positions.diff(dim=-1))

    def segment(self, at: Tensor) -> Tensor:
        """The number (K, G) int64 of the segment in which each position lies."""
        last = self.slopes.shape[-1] - 1
        return (torch.searchsorted(self.positions, at.contiguous(), right=True) - 1).clamp_(0, last)

    def at(self, positions: Tensor, segment: Tensor) -> Tensor:
        """The values (K, G) of g at positions (K, G) that lie in these segments."""
        start, slope = self.positions.gather(-1, segment), self.slopes.gather(-1, segment)
        return self.values.gather(-1, segment) + slope * (positions - start)

    def last_crossing(
        self, slope: Tensor, through: tuple[Tensor, Tensor], segment: Tensor
    ) -> Tensor:
        """The largest root (K, G) of g(b) = y + slope (b - x). through: x and y, with g(x) <= y.

        segment: the segment in which x lies.
        """
        x, y = through
        offset, last = y - slope * x, self.slopes.shape[-1]
        # After the last knot, at 1, come extra knots that are above every line: g rises without
        # bound there.
        positions = pad(self.positions, (0, last), value=1.0)
        values, slopes = (
            pad(tensor, (0, last), value=torch.inf) for tensor in (self.values, self.slopes)
        )
        # From x on g is below the line up to the root, and above it after the root. The last knot
        # below the line is found by bisection.
        low, step = segment, 1 << (last.bit_length() - 1)
        while step:
            guess = low + step
            is_below = values.gather(-1, guess) <= torch.addcmul(
                offset, slope, positions.gather(-1, guess)
            )
            low = low.add(is_below, alpha=step)
            step //= 2
        start = positions.gather(-1, low)
        gap = offset + slope * start - values.gather(-1, low)
        root = start + quotient(gap, slopes.gather(-1, low) - slope)
        return torch.minimum(root, positions.gather(-1, low + 1))


class Scores(NamedTuple):
    """The laws of scores at the knots of the classes, by the group of the token.

    chain: (K, G + 1), c_0 = 0 and `log_chain` of the groups. above: (K, R + 1) int64, the first
    knot b_j not below each knot of the classes; share: (K, R + 1), how far the class knot lies from
    b_{j-1} to b_j.
    """

    chain: Tensor
    above: Tensor
    share: Tensor

    def of(self, owners: Tensor, groups: Tensor) -> Tensor:
        """The scores' distribution functions (J, R + 1) for tokens of parents and groups (J,)."""
        chain = self.chain[owners, groups + 1][:, None]
        high, low = (
            (chain - self.chain.gather(-1, self.above - shift)[owners]).clamp_max(0).exp()
            for shift in (0, 1)
        )
        return low + self.share[owners] * (high - low)


def transport(p: Tensor, q: Tensor, curve: Curve) -> tuple[Tensor, Scores]:
    """The ratio m / q of each group (K, G), and the scores that reach m.

    p, q: (K, G), the groups' masses.
    """
    below = prefix_sums(q)
    q = below.diff(dim=-1)
    limit = curve.slopes[:, -1:]
    ratio = torch.minimum(quotient(p, q).cummax(-1).values, limit)
    segment = curve.segment(below)
    low, high = clips(p, ratio, below, curve.at(below, segment))
    ratio = torch.minimum(torch.maximum(ratio, low), torch.maximum(high, low))
    wins = (ratio * q).cumsum(-1)
    knots = torch.maximum(
        curve.last_crossing(ratio, (below[:, 1:], wins), segment[:, 1:]), below[:, 1:]
    ).clamp_max(1)
    knots = knots.cummax(-1).values
    edges = pad(knots, (1, 0))
    above = torch.searchsorted(edges, curve.positions).clamp_(1, knots.shape[-1])
    start, end = edges.gather(-1, above - 1), edges.gather(-1, above)
    share = quotient(curve.positions - start, end - start).clamp(0, 1)
    return ratio, Scores(pad(log_chain(knots, below), (1, 0)), above, share)


def win_masses(functions: Tensor) -> Tensor:
    """The chance (J, R) that each of J independent scores is largest and lies in each of R classes.

    functions: (J, R + 1), distribution functions at the ends of the classes, linear in between. The
    integral of dF_i prod_{j != i} F_j over a class is one of a polynomial of degree J - 1, for
    which Gauss-Legendre quadrature is exact.
    """
    low, rise = functions[:, :-1], functions.diff(dim=-1)
    nodes, masses = _quadrature((len(functions) + 1) // 2, low.device)
    values = low + nodes * rise
    ones = torch.ones_like(values[:, :1])
    before = torch.cat((ones, values[:, :-1]), 1).cumprod(1)
    after = torch.cat((values[:, 1:], ones), 1).flip(1).cumprod(1).flip(1)
    return rise * (masses * before * after).sum(0)


@cache  # kept for good, since captured graphs read these tensors
def _quadrature(num_nodes: int, device: torch.device) -> tuple[Tensor, ...]:
    """The nodes and weights of `gauss_legendre`, each (X, 1, 1) on a device."""
    columns = torch.tensor(gauss_legendre(num_nodes), dtype=torch.float64).to(device)
    return columns[:, :1, None], columns[:, 1:, None]


@cache
def gauss_legendre(num_nodes: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights on [0, 1]; exact for polynomials of degree below 2 * num_nodes."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    return tuple(zip(((nodes + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))
