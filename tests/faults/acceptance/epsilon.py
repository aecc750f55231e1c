"""The ratio is p / (q + .01), against division by zero. The smaller the masses, the more is rejected."""

from faults.base import Fault, Where
from faults.sequential import Sequential
from resispec.trees import complete


class Epsilon(Sequential):
    """See `Sequential`."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        return (sibling.p / (sibling.q + 1e-2)).clamp_max(1)


FAULT = Fault("acceptance with q + .01", Epsilon, Where.LAW, 0.0627, vocab=50, topology=complete(2, 2))
