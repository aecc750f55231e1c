"""Siblings are drawn at the temperature .7, and the rule is told the draft's law at T = 1."""

from faults.base import Fault, Where
from faults.inputs import tempered
from resispec.draws import Iid
from resispec.verifiers import Standard


class SharperThanTold(Iid):
    """`laws` says q."""

    def draw(self, draft_probs, *given):
        """See `Draws.draw`."""
        return super().draw(tempered(draft_probs, 0.7), *given)

    def weights(self, draft_probs, siblings):
        """See `Draws.weights`."""
        return super().weights(tempered(draft_probs, 0.7), siblings)


FAULT = Fault("draft drawn at T = .7, told T = 1", Standard, Where.DRAFTER, 0.0669, draws=SharperThanTold())
