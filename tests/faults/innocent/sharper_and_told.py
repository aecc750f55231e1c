"""Siblings are drawn at the temperature .7, and the rule is told so: any draft is fine if it is told."""

from faults.base import Fault, Where
from faults.drafting.sharper_than_told import SharperThanTold
from faults.inputs import tempered
from resispec.verifiers import Standard


class SharperAndTold(SharperThanTold):
    """`laws` says what is drawn from."""

    def laws(self, draft_probs, siblings):
        """See `Draws.laws`."""
        return super().laws(tempered(draft_probs, 0.7), siblings)

    def weights(self, draft_probs, siblings):
        """See `Draws.weights`: by `laws`."""
        return super(SharperThanTold, self).weights(draft_probs, siblings)


FAULT = Fault("draft drawn and told at T = .7", Standard, Where.DRAFTER, 0.0, draws=SharperAndTold())
