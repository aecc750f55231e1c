"""The ratio p / q is clamped at .99 for numerical safety, so that no sibling is ever sure to pass."""

from faults.base import Fault, Where
from faults.sequential import Sequential


class Clamped(Sequential):
    """See `Sequential`."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        return super().chance(sibling).clamp_max(0.99)


FAULT = Fault("acceptance clamped at .99", Clamped, Where.LAW, 0.0031)
