"""Probability laws as tensors: rescaled to sum to 1, and drawn from with an explicit generator.

Functions are batched over leading dimensions and pure, except that draws advance the generator;
only `draw_one` and `choose`, which return a number, synchronise with the host.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Generator, Tensor

BELOW_ONE = 1 - 2**-52
"""Factor of a sum before the sum is multiplied by a uniform number.

The largest uniform number is 1 - 2^-53. Its product with the sum could round up to the sum, past
the last token of positive weight.
"""
NO_MASS = torch.finfo(torch.float32).tiny
"""Largest draft mass of a token that counts as 0, in every precision: see `counted`."""


def normalise(weights: Tensor, fallback: Tensor, null: Tensor | float = 0.0) -> Tensor:
    """Divide weights by their sum over the last dimension; where the sum is zero, take `fallback`.

    weights: (..., V), not negative. fallback: (..., V), or a tensor that broadcasts to this shape.
    null: (..., 1), mass of an outcome that is no token; the mass is part of the sum. NaN stays NaN.
    """
    total = weights.sum(-1, keepdim=True) + null
    tiny = torch.finfo(weights.dtype).tiny
    return torch.where(total <= tiny, fallback, weights / total.clamp_min(tiny))


def quotient(dividend: Tensor, divisor: Tensor) -> Tensor:
    """Divide elementwise; a divisor of 0 counts as the least normal number, so 0 / 0 is 0.

    NaN stays NaN.
    """
    return dividend / divisor.clamp_min(torch.finfo(divisor.dtype).tiny)


def sum_tolerance(values: Tensor) -> float:
    """Allowed distance of a sum from 1 in this tensor's precision: 1e-9 in float64, else 1e-4."""
    return 1e-9 if values.dtype == torch.float64 else 1e-4


def sum_rounding(values: Tensor) -> float:
    """Rounding error of sums over a large vocabulary in this precision; less mass counts as 0."""
    return 64 * torch.finfo(values.dtype).eps


def summing_to_one(laws: Tensor) -> Tensor:
    """Laws (..., V), float32 or better, divided by sums that differ from 1 by more than rounding.

    To verifiers a lack is an outcome of its own.
    """
    wide = laws if laws.dtype in (torch.float32, torch.float64) else laws.float()
    total = wide.sum(-1, keepdim=True)
    return torch.where((total - 1).abs() > sum_rounding(wide), wide / total, wide)


def null_mass(probs: Tensor) -> Tensor:
    """The mass (..., 1) of a law (..., V) for an outcome that is no token; 0 if only rounding."""
    remainder = 1 - probs.sum(-1, keepdim=True)
    return torch.threshold(remainder, sum_rounding(probs), 0.0)  # NaN stays NaN


def counted(probs: Tensor) -> Tensor:
    """A law (..., V) whose masses up to NO_MASS are 0.

    Draws that exclude tokens go on with whatever mass is left, and uniformly once none is left.
    Drawing, the siblings' laws and the ceiling must agree on which case it is, each in its own
    precision, so all of them use masses that went through here. Single masses decide, not a sum,
    which may be rounded.
    """
    return torch.threshold(probs, NO_MASS, 0.0)  # NaN stays NaN


def without(probs: Tensor, taken: Tensor) -> Tensor:
    """The law (..., V) of a token after exclusions: `counted` masses, or uniform if none is left.

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
    return invert(
        weights, torch.rand(shape, generator=generator, device=weights.device, dtype=torch.float64)
    )


def invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The indices that `draw` returns for the given uniform numbers.

    weights: (..., V), as for `draw`. uniform: (..., K) float64 in [0, 1); of any shape for a single
    row (V,). Returns int64 of the shape of `uniform`.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    shares = uniform * (cumulative[..., -1:] * BELOW_ONE)
    # A NaN law gives no valid index; the last index keeps memory safe until a reader of the law
    # raises.
    return torch.searchsorted(cumulative, shares, right=True).clamp_max(cumulative.shape[-1] - 1)


def draw_one(weights: Tensor, generator: Generator, tolerance: float = float("inf")) -> int:
    """Draw one index from one law and check the law; waits for the device.

    weights: (V,), of any positive sum, or of a sum within `tolerance` of 1 if that is given.
    Raises FloatingPointError when the sum is not allowed, infinite or NaN, or when there are
    negative weights.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(1, generator=generator, device=weights.device, dtype=torch.float64)
    total, least = cumulative[-1].item(), weights.amin().item()
    if not (0.0 < total < float("inf") and abs(total - 1) <= tolerance and least >= 0):
        allowed = "positive" if tolerance == float("inf") else f"1 within {tolerance:g}"
        raise FloatingPointError(
            f"cannot draw from a law whose mass is {total:.9g} and whose least entry is "
            f"{least:.6g}; allowed: a mass that is finite and {allowed}, entries that are not "
            "negative"
        )
    return int(torch.searchsorted(cumulative, uniform * (total * BELOW_ONE), right=True).item())


def choose(chances: Iterable[Tensor], generator: Generator) -> int:
    """Draw an index with these chances; what they lack to 1 is the chance of `len(chances)`.

    chances: tensors of one value each, or a tensor (B,). They are read in turn until the index is
    decided; each reading waits for the device.
    Raises FloatingPointError when a chance that was read is NaN or negative, or when the sum of
    those read exceeds 1, see `sum_tolerance`.
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
