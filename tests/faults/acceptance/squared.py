"""Siblings pass with probability min(1, p / q) squared: tested twice, once by the drafter's side."""

from faults.base import Fault, Where
from faults.sequential import Sequential


class Squared(Sequential):
    """See `Sequential`."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        return super().chance(sibling).square()


FAULT = Fault("acceptance squared", Squared, Where.LAW, 0.1025)
