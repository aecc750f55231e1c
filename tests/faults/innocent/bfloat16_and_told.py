"""The draft is rounded to bfloat16 before siblings are drawn, and the ratio uses the same rounded law."""

from faults.base import Fault, Where
from faults.drafting.bfloat16_logits import Bfloat16Logits, rounded
from resispec.verifiers import Standard


class Bfloat16AndTold(Bfloat16Logits):
    """`laws` says what is drawn from."""

    def laws(self, draft_probs, siblings):
        """See `Draws.laws`."""
        return super().laws(rounded(draft_probs), siblings)

    def weights(self, draft_probs, siblings):
        """See `Draws.weights`: by `laws`."""
        return super(Bfloat16Logits, self).weights(draft_probs, siblings)


FAULT = Fault(
    "draft drawn and told from bfloat16 logits", Standard, Where.DRAFTER, 0.0, draws=Bfloat16AndTold()
)
