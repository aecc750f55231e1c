"""Every node but the root is verified with the draft's law of the node before it."""

import torch

from faults.base import Fault, Where
from faults.inputs import WrongInputs
from resispec.trees import chain


class DraftRowsOffByOne(WrongInputs):
    """See `WrongInputs`."""

    def wrong(self, tree, target_probs, draft_probs):  # noqa: ARG002 - the contract's
        """See `WrongInputs.wrong`."""
        return target_probs, torch.cat((draft_probs[:1], draft_probs[:-1]))


FAULT = Fault("draft's rows off by one", DraftRowsOffByOne, Where.VERIFY, 0.0612, vocab=4, topology=chain(2))
