"""From the leaves up, a node whose children have failed is never rejected: its residual is renormalised.

Top-down, and at the root, the residual is a law in any case, so only trees of three levels show it.
"""

from functools import partial

from faults.base import Fault, Where
from resispec.distributions import normalise
from resispec.trees import from_child_counts
from resispec.verifiers import Law, Standard, Traversal


class NullMassDropped:
    """The standard rule, whose residual sums to 1 also for a target that does not."""

    def law(self, *given):
        """See `SiblingRule.law`."""
        law = Standard().law(*given)
        return Law(law.select, normalise(law.residual, law.residual))


FAULT = Fault(
    "traversal that rejects no inner node",
    partial(Traversal, NullMassDropped()),
    Where.LAW,
    0.1443,
    vocab=3,
    topology=from_child_counts([[2], [1, 1]]),
)
