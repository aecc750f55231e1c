"""Only the first sibling is tested, the others are ignored: exact, with fewer accepted tokens."""

import torch

from faults.base import Fault, Where
from resispec.verifiers import Law, Standard


class FirstSiblingOnly(Standard):
    """See `Standard`."""

    def law(self, target_probs, draft_probs, siblings, draws):
        """See `SiblingRule.law`."""
        law = super().law(target_probs, draft_probs, siblings[..., :1], draws)
        ignored = torch.zeros_like(siblings[..., 1:], dtype=law.select.dtype)
        return Law(torch.cat((law.select, ignored), -1), law.residual)


FAULT = Fault("only the first sibling tested", FirstSiblingOnly, Where.LAW, 0.0)
