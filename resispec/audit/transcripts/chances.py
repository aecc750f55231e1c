"""How likely is a statistic this far out, when nothing is wrong?

The tails decide, so a sum's chance is that of Pearson's type III law (a shifted gamma law) with its mean,
variance and third moment: of rare events, such as an end of sequence, a normal law would misjudge them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST_Z = 1e6
"""What a z-score is when something happened that cannot."""
SMALLEST = 1e-300
"""Chances below this are 0."""


def two_sided(z: float, skewness: float) -> float:
    """Twice the chance that a standardised sum with this skewness is at least as far out as z on its side."""
    if abs(skewness) < 1e-3:
        return math.erfc(abs(z) / math.sqrt(2))
    if skewness < 0:
        z, skewness = -z, -skewness
    shape = 4 / skewness**2
    at = torch.tensor([shape, max(0.0, shape + z * math.sqrt(shape))], dtype=torch.float64)
    tail = torch.special.gammaincc if z > 0 else torch.special.gammainc
    return min(1.0, 2 * float(tail(at[0], at[1])))


def z_of(p_value: float) -> float:
    """How far out a normal variable is whose two-sided probability this is."""
    if p_value < SMALLEST:
        return LARGEST_Z
    return -float(torch.special.ndtri(torch.tensor(p_value / 2, dtype=torch.float64)))


def from_student(z: float, degrees: int) -> float:
    """What is nearly a normal variable where z is Student's (Wallace 1959)."""
    steps = (8 * degrees + 1) / (8 * degrees + 3)
    return math.copysign(steps * math.sqrt(degrees * math.log1p(z * z / degrees)), z)


def kolmogorov(uniforms: Tensor) -> tuple[float, float]:
    """Are these (N,) uniform? z and chance of the largest distance of their distribution (Stephens 1970)."""
    ordered, count = uniforms.sort().values, len(uniforms)
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    distance = float(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max())
    at = distance * (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count))
    series = sum((-1) ** (term - 1) * math.exp(-2 * (term * at) ** 2) for term in range(1, 101))
    p_value = 1.0 if at < 0.2 else min(1.0, max(0.0, 2 * series))
    return z_of(p_value) if p_value > SMALLEST else 2 * at, p_value
