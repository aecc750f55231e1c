"""Draws without replacement: Sequoia (arXiv 2402.12374)."""

import math
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from resispec.distributions import counted, without
from resispec.draws.base import DrawsKind, known
from resispec.draws.iid import Iid, in_order

STEP = 1 / 5
"""Step of the trapezoidal rule in x, t = exp(x - exp(-x)); its error falls like exp(-10 / step)."""


@known
class WithoutReplacement(DrawsKind):
    """Each draw removes its token from q, which is renormalised, or uniform once no mass is left.

    The masses of q are taken as `counted` leaves them.
    """

    name = "without_replacement"
    can_be_cut = True
    are_distinct = True

    def draw(self, draft_probs: Tensor, count: int, generator: Generator) -> Tensor:
        """See `DrawsKind.draw`.

        The exponential race (Gumbel top-k): sorting E_v / q_v with E_v ~ Exp(1) in float64 gives
        the sequential law exactly.
        """
        uniform = torch.rand(
            draft_probs.shape, generator=generator, device=draft_probs.device, dtype=torch.float64
        )
        # later than any token of positive mass, and in uniform order
        late_times = 1e300 * (1 + uniform)
        rates = counted(draft_probs).double()
        arrival = torch.where(rates > 0, -torch.log1p(-uniform) / rates, late_times)
        return arrival.topk(count, dim=-1, largest=False, sorted=True).indices

    def laws(self, draft_probs: Tensor, siblings: Tensor) -> Iterator[Tensor]:
        """See `DrawsKind.laws`."""
        yield counted(draft_probs)
        for count in range(1, siblings.shape[-1]):
            yield without(draft_probs, siblings[..., :count])

    def least_chances(self, draft_chances: Tensor) -> Tensor:
        """See `DrawsKind.least_chances`: renormalising only adds to what is left."""
        return draft_chances

    def ceiling(self, target_probs: Tensor, draft_probs: Tensor, num_siblings: int) -> Tensor:
        """See `DrawsKind.ceiling`: siblings are the first arrivals of a race, see `_race`."""
        if num_siblings == 1:
            return Iid().ceiling(target_probs, draft_probs, 1)
        p, q = target_probs, counted(draft_probs)
        q = q / q.sum(-1, keepdim=True)
        rows = zip(p.reshape(-1, p.shape[-1]), q.reshape(-1, p.shape[-1]), strict=True)
        return torch.stack([_ceiling(*row, num_siblings) for row in rows]).view(p.shape[:-1])


def _ceiling(p: Tensor, q: Tensor, count: int) -> Tensor:
    """The ceiling alpha* () for one pair of laws (V,), (V,)."""
    support = int((q > 0).sum())
    if support <= count:
        return _exhausted(p, q, count - support)
    p, q = in_order(p, q)
    p, q = p[:support], q[:support]
    outside = q.flip(0).cumsum(0).flip(0)
    outside = torch.cat((outside[1:], outside.new_zeros(1)))
    return (p.cumsum(0) + _race(q, outside, count)).amin().clamp_max(1)


def _exhausted(p: Tensor, q: Tensor, more: int) -> Tensor:
    """The ceiling alpha* if the siblings are all of q's tokens and `more` of the z others.

    The others are drawn uniformly without replacement. H must hold all of q's tokens, and takes the
    h least probable of the others: Pr(all in H) = C(h, more) / C(z, more).
    """
    others = p[q == 0].sort().values
    size = torch.arange(len(others) + 1, dtype=p.dtype, device=p.device)
    index = torch.arange(more, dtype=p.dtype, device=p.device)
    chances = ((size[:, None] - index).clamp_min(0) / (len(others) - index)).prod(-1)
    mass = p[q > 0].sum() + torch.cat((p.new_zeros(1), others.cumsum(0)))
    return 1 + (mass - chances).amin().clamp_max(0)


def _race(q: Tensor, outside: Tensor, count: int) -> Tensor:
    r"""Pr(not all of the first n arrivals lie in H_j), (K,), for every prefix H_j of q (K,), K > n.

    Token x arrives at an exponential time of rate q_x; the order of arrival is the order of draws
    without replacement. Integrate over the time t at which the first token outside H_j arrives,
    with fewer than n arrivals in H_j before it:

        \int_0^\infty out_j exp(-out_j t) Pr(fewer than n of H_j arrived by t) dt,

    where out_j is Q outside H_j. The n - 1 largest tokens are counted one by one; the number of
    others is an elementary symmetric sum of exp(q_x t) - 1, by nested cumulative sums. So no
    exponent exceeds 45, however peaked q is.
    """
    large = q.topk(count - 1).indices.sort().values
    is_small = torch.ones_like(q, dtype=torch.bool)
    is_small[large] = False
    rest = float(q[is_small].sum())
    # then only a share exp(-45) of the races is undecided
    low, high = -3.6, math.log(45 / rest) + 1e-3
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
    # Between two large tokens the number of large arrivals has one law: segment s holds the first s
    # large tokens.
    law = torch.zeros(count, dtype=q.dtype, device=q.device)
    law[0] = 1.0
    laws = [law]
    for token in large:
        chance = -torch.expm1(-q[token] * t)
        law = law * (1 - chance) + torch.cat((law.new_zeros(1), law[:-1])) * chance
        laws.append(law)
    segment = torch.bucketize(torch.arange(len(q), device=q.device), large, right=True)
    prefix_laws = torch.stack(laws)[segment]
    return stay * sum(
        (prefix_laws[:, m] * at_most[count - 1 - m] for m in range(count)), torch.zeros_like(q)
    )
