"""Independent siblings are tested from the last to the first: any order fixed beforehand is exact."""

from faults.base import Fault, Where
from resispec.verifiers import Law, Standard


class ReverseOrder(Standard):
    """See `Standard`."""

    def law(self, target_probs, draft_probs, siblings, draws):
        """See `SiblingRule.law`."""
        law = super().law(target_probs, draft_probs, siblings.flip(-1), draws)
        return Law(law.select.flip(-1), law.residual)


FAULT = Fault("independent siblings in reverse order", ReverseOrder, Where.LAW, 0.0)
