"""T = .7 is given to the target, and the verifier works with T = 1: sampling parameters that do not arrive.

In vLLM (issues 9834 and 10198) they were not applied to the target's law when it was verified.
"""

from faults.base import Fault, Where
from faults.inputs import WrongInputs, tempered
from resispec.trees import complete


class TemperatureForgotten(WrongInputs):
    """See `WrongInputs`."""

    def wrong(self, tree, target_probs, draft_probs):  # noqa: ARG002 - the contract's
        """See `WrongInputs.wrong`."""
        return tempered(target_probs, 1 / 0.7), draft_probs


FAULT = Fault("temperature forgotten", TemperatureForgotten, Where.VERIFY, 0.0937, topology=complete(2, 2))
