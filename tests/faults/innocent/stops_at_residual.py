"""A residual token that equals a drafted sibling ends the walk: the same law with fewer tokens a step."""

from functools import partial

from faults.base import Fault, Where
from faults.innocent.first_sibling_only import FirstSiblingOnly
from faults.walk import Walk
from resispec.trees import from_child_counts


class StopsAtResidual(Walk):
    """With a rule whose residual often holds a drafted token; the standard rule's holds none."""

    def child(self, node, index, token):  # noqa: ARG002 - the contract's
        """See `Walk.child`."""
        return None if index is None else node.children[index]

    outcomes = Walk.true_outcomes


FAULT = Fault(
    "residual token does not go on",
    partial(StopsAtResidual, FirstSiblingOnly()),
    Where.VERIFY,
    0.0,
    vocab=3,
    topology=from_child_counts([[2], [1, 1]]),
)
