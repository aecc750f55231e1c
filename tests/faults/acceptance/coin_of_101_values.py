"""The coin is one of 0, .01, .02, ..., 1, and a sibling passes when the coin is at most p / q.

OpenVINO GenAI's sampler draws such coins (read in a development state of 2026.4.0).
"""

from faults.base import Fault, Where
from faults.sequential import Sequential


class CoarseCoin(Sequential):
    """See `Sequential`."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        return ((100 * super().chance(sibling)).floor() + 1) / 101


FAULT = Fault("acceptance by a coin of 101 values", CoarseCoin, Where.LAW, 0.0081)
