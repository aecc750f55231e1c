"""Probability laws as tensors: softmax with temperature, draws from an explicit generator, siblings.

Every function is batched over leading dimensions, pure, and never synchronises with the host.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import torch
from torch import Generator, Tensor

from resispec.core import Draws


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Softmax of `logits / temperature` over the last dimension.

    logits: (..., V), any float dtype. Returns (..., V) in float32, or in float64 when the logits are float64.
    """
    precise = logits if logits.dtype == torch.float64 else logits.float()
    return torch.softmax(precise if temperature == 1 else precise / temperature, dim=-1)


def normalise(weights: Tensor, fallback: Tensor, null: Tensor | float = 0.0) -> Tensor:
    """Divide by the sum over the last dimension; where nothing is left to divide, take `fallback`.

    weights: (..., V), not negative. fallback: (..., V), a law that is used where the weights sum to zero.
    null: (..., 1), mass of an outcome that is no token; it counts in the sum.
    """
    total = weights.sum(-1, keepdim=True) + null
    tiny = torch.finfo(weights.dtype).tiny
    return torch.where(total > tiny, weights / total.clamp_min(tiny), fallback)


def null_mass(probs: Tensor) -> Tensor:
    """The mass (..., 1) that a law (..., V) leaves to an outcome that is no token; rounding of a whole law counts as none."""
    rounding = 64 * torch.finfo(probs.dtype).eps
    missing = 1 - probs.sum(-1, keepdim=True)
    return torch.where(missing > rounding, missing, 0.0)


def without(probs: Tensor, taken: Tensor) -> Tensor:
    """The law (..., V) of one more token once `taken` (..., K) int64 are excluded; uniform when no mass is left outside them."""
    unseen = torch.ones_like(probs).scatter(-1, taken, 0.0)
    return normalise(probs * unseen, normalise(unseen, unseen))


def draw(weights: Tensor, count: int, generator: Generator) -> Tensor:
    """Draw `count` independent indices from every row by inverting the cumulative sum in float64.

    weights: (..., V), not negative, of any positive sum; an index of weight zero is never drawn.
    Returns (..., count) int64.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    shape = (*weights.shape[:-1], count)
    uniform = torch.rand(shape, generator=generator, device=weights.device, dtype=torch.float64)
    return _invert(cumulative, uniform)


def _invert(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """The index at which the cumulative sum first exceeds the given share of its total; (..., V), (..., K) -> (..., K)."""
    # The largest uniform is 1 - 2^-53, and its product could round up to the total, past the last token of positive weight.
    total = cumulative[..., -1:] * (1 - 2**-52)
    # A law that is NaN has no index; the last one keeps memory safe until whoever reads the law raises.
    return torch.searchsorted(cumulative, uniform * total, right=True).clamp_max(cumulative.shape[-1] - 1)


def draw_one(weights: Tensor, generator: Generator) -> int:
    """Draw one index from one law of any positive sum, and check the law on the way (a single host synchronisation).

    weights: (V,). Raises FloatingPointError when the sum is zero, infinite or NaN.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(1, generator=generator, device=weights.device, dtype=torch.float64)
    index, total = torch.cat((_invert(cumulative, uniform).double(), cumulative[-1:])).tolist()
    if not 0.0 < total < float("inf"):
        raise FloatingPointError(
            f"cannot draw from a law whose mass is {total}; masses are positive and finite"
        )
    return int(index)


def choose(chances: Tensor, generator: Generator) -> int:
    """Draw an index with these chances (B,), or B with what they leave of one (a single host synchronisation).

    Raises FloatingPointError when a chance is NaN or the sum exceeds one.
    """
    uniform = torch.rand(1, generator=generator, device=chances.device, dtype=torch.float64)
    *masses, share = torch.cat((chances, uniform)).tolist()
    cumulative = list(accumulate(masses))
    if not cumulative[-1] < 1 + 1e-3:
        raise FloatingPointError(
            f"cannot choose with chances {masses}; each is a number and they sum to at most 1"
        )
    return bisect_right(cumulative, share)


def draw_siblings(draft_probs: Tensor, count: int, draws: Draws, generator: Generator) -> Tensor:
    """Draw `count` siblings from every row, in draw order.

    draft_probs: (..., V). Returns (..., count) int64.
    Without replacement this is the exponential race (Gumbel top-k): sorting E_v / q_v with E_v ~ Exp(1) in float64 gives
    the sequential law exactly; when fewer than `count` tokens have mass, the others follow uniformly.
    """
    if draws is Draws.IID:
        return draw(draft_probs, count, generator)
    if draws is Draws.POINT_MASS:
        return draft_probs.topk(count, dim=-1).indices
    if draws is Draws.GREEDY:
        largest = draft_probs.topk(count - 1, dim=-1).indices
        return torch.cat((largest, draw(without(draft_probs, largest), 1, generator)), -1)
    uniform = torch.rand(
        draft_probs.shape, generator=generator, device=draft_probs.device, dtype=torch.float64
    )
    never = 1e300 * (1 + uniform)  # later than any token of positive mass, and in uniform order
    arrival = torch.where(draft_probs > 0, -torch.log1p(-uniform) / draft_probs.double(), never)
    return arrival.topk(count, dim=-1, largest=False, sorted=True).indices
