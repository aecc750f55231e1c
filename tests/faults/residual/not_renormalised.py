"""What is left after a rejection is not divided by its mass before the next sibling is tested against it."""

from faults.base import Fault, Where
from faults.sequential import Sequential
from resispec.distributions import normalise
from resispec.verifiers import Law


class NotRenormalised(Sequential):
    """Only the law of the final draw is a law."""

    def left(self, sibling):
        """See `Sequential.left`."""
        return (sibling.target - sibling.draft).clamp_min(0)

    def law(self, target_probs, draft_probs, siblings, draws):
        """See `SiblingRule.law`."""
        law = super().law(target_probs, draft_probs, siblings, draws)
        return Law(law.select, normalise(law.residual, target_probs))


FAULT = Fault("residual not renormalised between siblings", NotRenormalised, Where.LAW, 0.0711)
