"""Siblings are drawn without replacement, and the rule is told that they are independent draws."""

from faults.base import Fault, Where
from resispec.draws import Iid, WithoutReplacement
from resispec.verifiers import Standard


class DistinctToldAsIndependent(Iid):
    """`laws` says q, again and again."""

    are_independent = False

    def draw(self, *given):
        """See `Draws.draw`."""
        return WithoutReplacement().draw(*given)

    def weights(self, *given):
        """See `Draws.weights`."""
        return WithoutReplacement().weights(*given)


FAULT = Fault(
    "distinct siblings told as independent",
    Standard,
    Where.DRAFTER,
    0.0560,
    draws=DistinctToldAsIndependent(),
)
