"""Of siblings with equal tokens the walk goes on at the one below which the target likes what was drafted.

Each of their subtrees is a fresh draft, the best of them is not. A choice that looks at no tokens is fine.
"""

from faults.base import Fault, Where
from faults.walk import Walk
from resispec.trees import from_child_counts


class BestSubtree(Walk):
    """See `Walk`."""

    def child(self, node, index, token):  # noqa: ARG002 - the contract's
        """See `Walk.child`."""
        equal = [child for child in node.children if node.tree.tokens[child] == token]
        return max(equal, key=lambda child: liking(node, child), default=None)


def liking(node, child):
    """The largest mass that the target gives to a token drafted below a child."""
    below = node.tree.tokens[list(node.tree.topology.children[child])]
    return float(node.target_probs[child, below].max()) if len(below) else 0.0


FAULT = Fault(
    "best subtree among equal siblings",
    BestSubtree,
    Where.VERIFY,
    0.0444,
    vocab=3,
    topology=from_child_counts([[2], [1, 1]]),
)
