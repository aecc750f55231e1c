"""The residual of the first rejection serves for all later siblings, too: it is never updated again.

EAGLE had a stale residual (issue 50, mended in pull request 47); accuracy dropped at T > 0 and not at T = 0.
"""

from faults.base import Fault, Where
from faults.sequential import Sequential


class FirstResidual(Sequential):
    """Reshapes the target once."""

    def left(self, sibling):
        """See `Sequential.left`."""
        return super().left(sibling) if sibling.rank == 0 else sibling.target


FAULT = Fault("residual of the first rejection reused", FirstResidual, Where.LAW, 0.0686)
