"""The bonus token is drawn from the root's law, whatever leaf the walk has reached.

TensorRT-LLM (pull request 15098) read a wrong slice of the logits in dynamic trees; smoke tests passed.
"""

from faults.base import Fault, Where
from faults.inputs import WrongInputs
from resispec.trees import chain


class FromTheRoot(WrongInputs):
    """See `WrongInputs`."""

    def wrong(self, tree, target_probs, draft_probs):
        """See `WrongInputs.wrong`."""
        leaves = [node for node, children in enumerate(tree.topology.children) if not children]
        target = target_probs.clone()
        target[leaves] = target_probs[0]
        return target, draft_probs


FAULT = Fault("bonus token from the root's law", FromTheRoot, Where.VERIFY, 0.2293, topology=chain(1))
