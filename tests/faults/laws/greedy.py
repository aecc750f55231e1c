"""Verification is greedy although T > 0: only the likeliest token is accepted or emitted.

SGLang (issues 31214 and 39253); users saw repetitions.
"""

from faults.base import Fault, Where
from faults.inputs import WrongInputs, argmax
from resispec.trees import complete


class Greedy(WrongInputs):
    """See `WrongInputs`."""

    def wrong(self, tree, target_probs, draft_probs):  # noqa: ARG002 - the contract's
        """See `WrongInputs.wrong`."""
        return argmax(target_probs), draft_probs


FAULT = Fault("verification greedy", Greedy, Where.VERIFY, 0.5929, topology=complete(2, 2))
