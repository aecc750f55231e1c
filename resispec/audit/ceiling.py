r"""The highest probability that any exact rule emits one of the drafted siblings.

For siblings X drawn from the draft's law this is an optimal transport problem whose dual is a minimum over sets of tokens,
    alpha* = 1 + min_H [P(H) - Pr(all siblings in H)],
and a minimiser is a prefix of the tokens in increasing order of p / q (Hu et al., arXiv 2502.18779). A rule above alpha* is not
exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from resispec.audit.laws import check_rows
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws

STEP = 1 / 5
"""Step of the trapezoidal rule in x, t = exp(x - exp(-x)): its error falls like exp(-10 / step)."""
HORIZON = 45.0
"""Races are followed until exp(-45) of them are undecided."""


def ceiling(target_probs: Tensor, draft_probs: Tensor, num_siblings: int, draws: Draws) -> Tensor:
    """alpha* (...), float64, for `num_siblings` siblings drawn from q as `draws` says.

    target_probs, draft_probs: (..., V). IID: Pr(all in H) = Q(H)^n. WITHOUT_REPLACEMENT: the first n arrivals of an exponential
    race, see `_race`. POINT_MASS: the mass of q's n largest tokens under p; of equally likely ones those with the most, since
    nothing says which of them were chosen. GREEDY: see `_greedy`.
    Raises InvalidInput when p or q is no law or more distinct siblings are asked for than there are tokens.
    """
    check_rows("target probabilities", target_probs, 1e-4)
    check_rows("draft probabilities", draft_probs, 1e-4)
    vocab = target_probs.shape[-1]
    if num_siblings < 1 or (draws is not Draws.IID and num_siblings > vocab):
        raise InvalidInput(
            f"{num_siblings} siblings of {vocab} tokens; allowed: at least 1, and distinct ones at most {vocab}"
        )
    p, q = target_probs.double(), draft_probs.double()
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    if draws is Draws.POINT_MASS:
        return _largest(p, draft_probs, num_siblings)
    if draws is Draws.GREEDY:
        return _greedy(p, draft_probs.double(), num_siblings - 1)
    if draws is Draws.IID or num_siblings == 1:
        p, q = _sorted(p, q)
        # The empty set gives 0; it is not among the prefixes.
        return 1 + (p.cumsum(-1) - q.cumsum(-1).clamp_max(1) ** num_siblings).amin(-1).clamp_max(0)
    rows = zip(p.reshape(-1, vocab), q.reshape(-1, vocab), strict=True)
    return torch.stack([_without_replacement(*row, num_siblings) for row in rows]).view(p.shape[:-1])


def _largest(p: Tensor, q: Tensor, count: int) -> Tensor:
    """The most mass (...) under p that `count` largest tokens of q can have."""
    if count == 0:
        return torch.zeros_like(p[..., 0])
    least = q.topk(count, dim=-1).values[..., -1:]
    sure = (q > least).sum(-1, keepdim=True)
    tied = torch.where(q == least, p, 0.0).sort(-1, descending=True).values
    chosen = torch.arange(p.shape[-1], device=p.device) < count - sure
    return torch.where(q > least, p, 0.0).sum(-1) + torch.where(chosen, tied, 0.0).sum(-1)


def _greedy(p: Tensor, q: Tensor, count: int) -> Tensor:
    """P(D) + sum min(p, r) outside D, for D the `count` largest tokens of q and r the law of q outside D, uniform if it has none.

    A token of D adds (p - r)+ to what all tokens have, so of equally likely tokens those with the largest p are the best D.
    """
    rest = q.sort(-1, descending=True).values[..., count:].sum(-1, keepdim=True)
    uniform = (q == 0).to(q.dtype) / (q.shape[-1] - count)
    r = torch.where(rest > 0, q / rest, uniform)
    common = torch.minimum(p, r)
    return common.sum(-1) + _largest(p - common, q, count)


def _sorted(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Both in increasing order of p / q; tokens of q = 0 come last, where they only add to P(H)."""
    order = torch.where(q > 0, p / q, torch.inf).argsort(-1)
    return p.gather(-1, order), q.gather(-1, order)


def _without_replacement(p: Tensor, q: Tensor, count: int) -> Tensor:
    """alpha* () for one pair (V,), (V,)."""
    support = int((q > 0).sum())
    if support <= count:
        return _exhausted(p, q, count - support)
    p, q = _sorted(p, q)
    p, q = p[:support], q[:support]
    outside = q.flip(0).cumsum(0).flip(0)
    outside = torch.cat((outside[1:], outside.new_zeros(1)))
    return (p.cumsum(0) + _race(q, outside, count)).amin().clamp_max(1)


def _exhausted(p: Tensor, q: Tensor, more: int) -> Tensor:
    """alpha* when the siblings are all of q's tokens and `more` others, uniform without replacement over z tokens.

    H must hold all of q's tokens; of the others it takes the h least probable ones: Pr(all in H) = C(h, more) / C(z, more).
    """
    others = p[q == 0].sort().values
    size = torch.arange(len(others) + 1, dtype=p.dtype, device=p.device)
    index = torch.arange(more, dtype=p.dtype, device=p.device)
    inside = ((size[:, None] - index).clamp_min(0) / (len(others) - index)).prod(-1)
    mass = p[q > 0].sum() + torch.cat((p.new_zeros(1), others.cumsum(0)))
    return 1 + (mass - inside).amin().clamp_max(0)


def _race(q: Tensor, outside: Tensor, count: int) -> Tensor:
    r"""Pr(not all of the first n arrivals lie in the prefix H_j), (K,) for every prefix j of q (K,), K > n.

    Token x arrives at an exponential time of rate q_x; the order of arrival is the order of draws without replacement.
    Integrate over the time t at which the first token outside H_j arrives, with fewer than n arrivals in H_j before it:
        \int_0^\infty out_j exp(-out_j t) Pr(fewer than n of H_j arrived by t) dt,   out_j = Q outside H_j.
    The n - 1 largest tokens are counted one by one; the number of others is an elementary symmetric sum of exp(q_x t) - 1, by
    nested cumulative sums. So no exponent exceeds 45, however peaked q is.
    """
    large = q.topk(count - 1).indices.sort().values
    is_small = torch.ones_like(q, dtype=torch.bool)
    is_small[large] = False
    rest = float(q[is_small].sum())
    low, high = -3.6, math.log(HORIZON / rest) + 1e-3
    x = torch.arange(low, high + STEP, STEP, dtype=q.dtype, device=q.device)
    x = x + (high - x[-1])
    time = (x - (-x).exp()).exp()
    width = STEP * time * (1 + (-x).exp())
    total = torch.zeros_like(q)
    for t, dt in zip(time, width, strict=True):
        total += dt * outside * (-outside * t).exp() * _fewer(q, t, large, is_small, count)
    return total


def _fewer(q: Tensor, t: Tensor, large: Tensor, is_small: Tensor, count: int) -> Tensor:
    """Pr(fewer than `count` tokens of prefix j arrived by time t), (K,) for every prefix."""
    small = torch.where(is_small, q, 0.0)
    odds = torch.expm1(small * t)
    stay = (-t * small.cumsum(0)).exp()
    exactly, at_most = torch.ones_like(q), [torch.ones_like(q)]
    for _ in range(count - 1):
        before = torch.cat((exactly.new_zeros(1), exactly[:-1])) if len(at_most) > 1 else exactly
        exactly = (odds * before).cumsum(0)
        at_most.append(at_most[-1] + exactly)
    # Between two large tokens the number of large arrivals has one law: segment s holds the first s large tokens.
    law = torch.zeros(count, dtype=q.dtype, device=q.device)
    law[0] = 1.0
    laws = [law]
    for token in large:
        gone = -torch.expm1(-q[token] * t)
        law = law * (1 - gone) + torch.cat((law.new_zeros(1), law[:-1])) * gone
        laws.append(law)
    segment = torch.bucketize(torch.arange(len(q), device=q.device), large, right=True)
    arrived = torch.stack(laws)[segment]
    return stay * sum((arrived[:, m] * at_most[count - 1 - m] for m in range(count)), torch.zeros_like(q))
