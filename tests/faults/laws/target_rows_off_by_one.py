"""Every node is given the target's law of the node before it, in `outcomes`, too.

TensorRT-LLM (pull request 15098) took a wrong slice of the target's logits.
"""

from faults.base import Fault, Where
from faults.inputs import WrongInputs
from resispec.trees import chain


class TargetRowsOffByOne(WrongInputs):
    """See `WrongInputs`."""

    def wrong(self, tree, target_probs, draft_probs):  # noqa: ARG002 - the contract's
        """See `WrongInputs.wrong`."""
        return target_probs.roll(1, 0), draft_probs

    outcomes = WrongInputs.true_outcomes


FAULT = Fault("target's rows off by one", TargetRowsOffByOne, Where.LAW, 0.2543, vocab=4, topology=chain(2))
