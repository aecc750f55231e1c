"""Right for three siblings; the fourth is accepted without a test, by an index that ends too early."""

import torch

from faults.base import Fault, Where
from faults.sequential import Sequential
from resispec.trees import complete


class WrongFromTheFourth(Sequential):
    """See `Sequential`."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        return super().chance(sibling) if sibling.rank < 3 else torch.ones_like(sibling.p)


FAULT = Fault(
    "wrong from the fourth sibling on", WrongFromTheFourth, Where.LAW, 0.2315, topology=complete(2, 4)
)
