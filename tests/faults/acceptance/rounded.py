"""The ratio is 0 or 1: a token passes if and only if the target likes it at least as much as the draft.

In vLLM (issue 13196) a seed was without effect and every ratio capped to 0 or 1; a user noticed.
"""

from faults.base import Fault, Where
from faults.sequential import Sequential


class Rounded(Sequential):
    """See `Sequential`."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        return super().chance(sibling).floor()


FAULT = Fault("acceptance rounded to 0 or 1", Rounded, Where.LAW, 0.1953)
