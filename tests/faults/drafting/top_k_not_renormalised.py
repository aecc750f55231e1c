"""Siblings are drawn from the draft's 3 likeliest tokens, whose masses are told without renormalising."""

from faults.base import Fault, Where
from faults.inputs import only_top, top
from resispec.draws import Iid
from resispec.verifiers import Standard


class TopKNotRenormalised(Iid):
    """`laws` says less than what is drawn from."""

    def draw(self, draft_probs, *given):
        """See `Draws.draw`."""
        return super().draw(only_top(draft_probs, 3), *given)

    def laws(self, draft_probs, siblings):
        """See `Draws.laws`."""
        return super().laws(top(draft_probs, 3), siblings)

    def weights(self, draft_probs, siblings):
        """See `Draws.weights`."""
        return only_top(draft_probs, 3).gather(-1, siblings).prod(-1)


FAULT = Fault("draft's top-k not renormalised", Standard, Where.DRAFTER, 0.0617, draws=TopKNotRenormalised())
