"""All siblings of a node are drawn with one random number, so that they are copies of one token."""

from faults.base import Fault, Where
from resispec.draws import Iid
from resispec.verifiers import Standard


class SiblingsShareNoise(Iid):
    """`laws` says that they are independent."""

    are_independent = False

    def draw(self, draft_probs, count, generator):
        """See `Draws.draw`."""
        one = super().draw(draft_probs, 1, generator)
        return one.expand(*one.shape[:-1], count)

    def weights(self, draft_probs, siblings):
        """See `Draws.weights`."""
        first = siblings[..., :1]
        return draft_probs.gather(-1, first)[..., 0] * (siblings == first).all(-1)


FAULT = Fault(
    "siblings drawn with one random number", Standard, Where.DRAFTER, 0.0627, draws=SiblingsShareNoise()
)
