"""Token 0, the end of the sequence, is never accepted when it was drafted, so that no step ends early."""

import torch

from faults.base import Fault, Where
from faults.sequential import Sequential


class EndNeverAccepted(Sequential):
    """See `Sequential`."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        return torch.where(sibling.token == 0, 0.0, super().chance(sibling))


FAULT = Fault("end of sequence never accepted", EndNeverAccepted, Where.LAW, 0.0816)
