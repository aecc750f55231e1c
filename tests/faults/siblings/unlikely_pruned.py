"""Siblings whose mass under the draft is below .05 are pruned after they were drawn, to save positions.

What stays is no draw from q any more, but is tested as one. Sampled siblings may not be pruned by score.
"""

import torch

from faults.base import Fault, Where
from faults.sequential import Sequential


class UnlikelyPruned(Sequential):
    """See `Sequential`."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        return torch.where(sibling.q < 0.05, 0.0, super().chance(sibling))

    def left(self, sibling):
        """See `Sequential.left`."""
        return torch.where(sibling.q < 0.05, sibling.target, super().left(sibling))


FAULT = Fault("unlikely siblings pruned after the draw", UnlikelyPruned, Where.LAW, 0.0903)
