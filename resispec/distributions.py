"""Probability laws as tensors: sums of 1, draws from an explicit generator.

Functions are batched over leading dimensions and pure, and never synchronise with the host, but for those
that draw or choose a number.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Generator, Tensor

ROUNDING_EPS = 64
"""Masses this many machine epsilons apart count as equal."""
BELOW_ONE = 1 - 2**-52
"""Factor of a sum before it meets a uniform number: the largest of these is 1 - 2^-53, and its product could
round up to the sum, past the last token of positive weight."""
NO_MASS = torch.finfo(torch.float32).tiny
"""Largest draft mass of a token that counts as 0, in every precision: see `counted`."""


def normalise(weights: Tensor, fallback: Tensor, null: Tensor | float = 0.0) -> Tensor:
    """Divide by the sum over the last dimension; where the sum is zero, take `fallback`.

    weights: (..., V), not negative. fallback: (..., V), or what broadcasts to it.
    null: (..., 1), mass of an outcome that is no token; it counts in the sum. NaN stays NaN.
    """
    total = weights.sum(-1, keepdim=True) + null
    tiny = torch.finfo(weights.dtype).tiny
    return torch.where(total <= tiny, fallback, weights / total.clamp_min(tiny))


def sum_tolerance(values: Tensor) -> float:
    """Tolerance of a law's sum to 1 in this tensor's precision: 1e-9 in float64, else 1e-4."""
    return 1e-9 if values.dtype == torch.float64 else 1e-4


def sum_rounding(values: Tensor) -> float:
    """Loss of a sum over a large vocabulary in this tensor's precision; smaller masses count as 0."""
    return ROUNDING_EPS * torch.finfo(values.dtype).eps


def null_mass(probs: Tensor) -> Tensor:
    """The mass (..., 1) that a law (..., V) leaves to an outcome that is no token; 0 if it is rounding."""
    remainder = 1 - probs.sum(-1, keepdim=True)
    return torch.threshold(remainder, sum_rounding(probs), 0.0)  # NaN stays NaN


def counted(probs: Tensor) -> Tensor:
    """A law (..., V) whose masses up to NO_MASS are 0.

    Draws that exclude tokens go on with what little mass is left, and uniformly once there is none. Drawing,
    the siblings' laws and the ceiling must agree on which of the two it is, in whatever precision each works,
    so all of them look at masses that went through here. A token decides it, not a sum, which may be rounded.
    """
    return torch.threshold(probs, NO_MASS, 0.0)  # NaN stays NaN


def without(probs: Tensor, taken: Tensor) -> Tensor:
    """The law (..., V) of a token when others are excluded: `probs`, as `counted`, or else uniform.

    taken: (..., K) int64, the excluded tokens, all different.
    """
    masses = counted(probs).scatter_(-1, taken, 0.0)
    uniform = masses.new_full((1,), 1 / max(1, probs.shape[-1] - taken.shape[-1]))
    return normalise(masses, uniform).scatter_(-1, taken, 0.0)


def draw(weights: Tensor, count: int, generator: Generator) -> Tensor:
    """Draw `count` independent indices from every row by inverting the cumulative sum in float64.

    weights: (..., V), not negative, of any positive sum; an index of weight zero is never drawn.
    Returns (..., count) int64.
    """
    shape = (*weights.shape[:-1], count)
    return invert(weights, torch.rand(shape, generator=generator, device=weights.device, dtype=torch.float64))


def invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The indices that `draw` returns when these are its uniform numbers.

    weights: (..., V), as for `draw`. uniform: (..., K) float64 in [0, 1); of any shape for a single row (V,).
    Returns int64 of the shape of `uniform`.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    shares = uniform * (cumulative[..., -1:] * BELOW_ONE)
    # A law that is NaN has no index; the last one keeps memory safe until whoever reads the law raises.
    return torch.searchsorted(cumulative, shares, right=True).clamp_max(cumulative.shape[-1] - 1)


def draw_one(weights: Tensor, generator: Generator, tolerance: float = float("inf")) -> int:
    """Draw one index from one law, and check the law on the way; it waits for the device.

    weights: (V,), of any positive sum, or of one that is within `tolerance` of 1 if that is given.
    Raises FloatingPointError when the sum is not allowed, infinite or NaN, or when there are negative
    weights.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(1, generator=generator, device=weights.device, dtype=torch.float64)
    total, least = cumulative[-1].item(), weights.amin().item()
    if not (0.0 < total < float("inf") and abs(total - 1) <= tolerance and least >= 0):
        allowed = "positive" if tolerance == float("inf") else f"1 within {tolerance:g}"
        raise FloatingPointError(
            f"cannot draw from a law whose mass is {total:.9g} and whose least entry is {least:.6g}; "
            f"allowed: a mass that is finite and {allowed}, entries that are not negative"
        )
    return int(torch.searchsorted(cumulative, uniform * (total * BELOW_ONE), right=True).item())


def choose(chances: Iterable[Tensor], generator: Generator) -> int:
    """Draw an index with these chances, or their number with what they leave of 1.

    chances: one value each, asked for in turn until the index is decided; a tensor (B,) is an iterable, too.
    Each is waited for.
    Raises FloatingPointError when one that was asked for is NaN or negative, or when their sum exceeds 1, see
    `sum_tolerance`.
    """
    uniform = torch.rand(1, generator=generator, device=generator.device, dtype=torch.float64)
    share, total, masses = uniform.item(), 0.0, list[float]()
    index = 0
    for chance in chances:
        masses.append(chance.item())
        if share < (total := total + masses[-1]):
            break
        index += 1
    check_chances(masses, sum_tolerance(chance))
    return index


def check_chances(chances: Sequence[float], tolerance: float) -> None:
    """Raise FloatingPointError unless these are chances of exclusive events, up to `tolerance`."""
    if not (sum(chances) <= 1 + tolerance and min(chances) >= -tolerance):  # the sum of NaN is NaN
        raise FloatingPointError(
            f"cannot choose with chances {chances}; allowed: not negative, and a sum of at most 1"
        )
