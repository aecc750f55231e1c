"""Of siblings with equal tokens the walk goes on at the last one, not at the first.

What lies below plays no part in that choice, so each of them is as good.
"""

from faults.base import Fault, Where
from faults.walk import Walk
from resispec.trees import from_child_counts


class LastCopy(Walk):
    """See `Walk`."""

    def child(self, node, index, token):  # noqa: ARG002 - the contract's
        """See `Walk.child`."""
        equal = [child for child in node.children if node.tree.tokens[child] == token]
        return equal[-1] if equal else None

    outcomes = Walk.true_outcomes


FAULT = Fault(
    "goes on at the last of equal siblings",
    LastCopy,
    Where.VERIFY,
    0.0,
    vocab=3,
    topology=from_child_counts([[2], [1, 1]]),
)
