"""The draft's mass is rounded to bfloat16 in the ratio, while siblings are drawn from the precise law.

DeepSpec (issues 31 and 48) had it the other way round. Both differ by a thousandth.
"""

import torch

from faults.base import Fault, Where
from faults.sequential import Sequential


class Bfloat16Draft(Sequential):
    """See `Sequential`."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        return (sibling.p / sibling.q.to(torch.bfloat16).to(sibling.q.dtype)).clamp_max(1)


FAULT = Fault("draft in bfloat16 in the ratio only", Bfloat16Draft, Where.LAW, 0.0001)
