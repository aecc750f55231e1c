"""Typical acceptance (Medusa, arXiv 2401.10774): a sibling passes when p is above a threshold.

The threshold is min(.3, .09 exp(-H)), H the target's entropy; the numbers are Medusa's defaults. It was never
meant to be exact.
"""

import torch

from faults.base import Fault, Where
from faults.sequential import Sequential


class Typical(Sequential):
    """Tests every sibling against the target itself, and draws from it when none passes."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        entropy = torch.special.entr(sibling.target).sum(-1, keepdim=True)
        return (sibling.p > (0.09 * (-entropy).exp()).clamp_max(0.3)).to(sibling.p.dtype)

    def left(self, sibling):
        """See `Sequential.left`."""
        return sibling.target


FAULT = Fault("typical acceptance", Typical, Where.LAW, 0.3787)
