"""Siblings are sorted by the target's mass before they are tested, so that the likeliest comes first.

What is tested first is then no fresh draw from q. Sampled siblings may not be ranked.
"""

import torch

from faults.base import Fault, Where
from resispec.verifiers import Law, Standard


class SortedByTarget(Standard):
    """See `Standard`."""

    def law(self, target_probs, draft_probs, siblings, draws):
        """See `SiblingRule.law`."""
        order = target_probs.gather(-1, siblings).argsort(dim=-1, descending=True, stable=True)
        law = super().law(target_probs, draft_probs, siblings.gather(-1, order), draws)
        return Law(torch.zeros_like(law.select).scatter(-1, order, law.select), law.residual)


FAULT = Fault("siblings sorted by the target", SortedByTarget, Where.LAW, 0.3328)
