"""Without replacement, the draft loses the tokens that were drawn but is not renormalised."""

from faults.base import Fault, Where
from resispec.draws import WithoutReplacement
from resispec.verifiers import Draws, Standard


class NotRenormalised(WithoutReplacement):
    """The laws as the rule has them; how siblings are drawn plays no part here."""

    def laws(self, draft_probs, siblings):
        """See `Draws.laws`."""
        yield draft_probs
        for token in siblings.split(1, -1)[:-1]:
            draft_probs = draft_probs.scatter(-1, token, 0.0)
            yield draft_probs


class DraftNotRenormalised(Standard):
    """See `Standard`."""

    def law(self, target_probs, draft_probs, siblings, draws):
        """See `SiblingRule.law`."""
        told = NotRenormalised() if draws == Draws.WITHOUT_REPLACEMENT else draws
        return super().law(target_probs, draft_probs, siblings, told)


FAULT = Fault(
    "draft not renormalised without replacement",
    DraftNotRenormalised,
    Where.LAW,
    0.0560,
    draws=Draws.WITHOUT_REPLACEMENT,
)
