"""The residual is |p - q| in place of (p - q)+, the clamp was forgotten and the signs were mended."""

from faults.base import Fault, Where
from resispec.verifiers.recursive import Recursive


class AbsoluteDifference(Recursive):
    """See `Recursive`."""

    def reshape(self, target, draft, rejected):  # noqa: ARG002 - the contract's
        """See `Recursive.reshape`."""
        return (target - draft).abs()


FAULT = Fault("residual |p - q|", AbsoluteDifference, Where.LAW, 0.2527)
