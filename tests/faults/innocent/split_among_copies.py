"""The naive rule, whose mass for a token that was drafted several times is split evenly among its copies."""

from faults.base import Fault, Where
from resispec.verifiers import Law, Naive


class SplitAmongCopies(Naive):
    """See `Naive`."""

    def law(self, target_probs, draft_probs, siblings, draws):
        """See `SiblingRule.law`."""
        copies = (siblings[..., :, None] == siblings[..., None, :]).sum(-1)
        law = super().law(target_probs, draft_probs, siblings, draws)
        return Law(target_probs.gather(-1, siblings) / copies, law.residual)


FAULT = Fault("mass split among equal siblings", SplitAmongCopies, Where.LAW, 0.0)
