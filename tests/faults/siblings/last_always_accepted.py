"""The last sibling is accepted without a test, since something has to be emitted."""

import torch

from faults.base import Fault, Where
from resispec.verifiers import Law, Standard


class LastAlwaysAccepted(Standard):
    """See `Standard`."""

    def law(self, *given):
        """See `SiblingRule.law`."""
        law = super().law(*given)
        before = law.select[..., :-1]
        return Law(torch.cat((before, (1 - before.sum(-1, keepdim=True)).clamp_min(0)), -1), law.residual)


FAULT = Fault("last sibling always accepted", LastAlwaysAccepted, Where.LAW, 0.2599)
