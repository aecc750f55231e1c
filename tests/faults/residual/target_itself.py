"""After a rejection the token is drawn from the target itself: no residual is computed.

OpenVINO GenAI's sampler (read in a development state of 2026.4.0) draws no residual either.
"""

from faults.base import Fault, Where
from resispec.verifiers.recursive import Recursive


class NoResidual(Recursive):
    """See `Recursive`."""

    def reshape(self, target, draft, rejected):  # noqa: ARG002 - the contract's
        """See `Recursive.reshape`."""
        return target


FAULT = Fault("no residual: the target itself", NoResidual, Where.LAW, 0.2521)
