"""The target is cut to top-p .9 in the test of a sibling, but not in the residual: a warper on one side."""

import torch

from faults.base import Fault, Where
from faults.sequential import Sequential
from resispec.distributions import normalise


class TopP(Sequential):
    """See `Sequential`."""

    def chance(self, sibling):
        """See `Sequential.chance`."""
        masses, order = sibling.target.sort(-1, descending=True)
        kept = torch.where(masses.cumsum(-1) - masses < 0.9, masses, 0.0)
        cut = normalise(torch.zeros_like(kept).scatter(-1, order, kept), sibling.target)
        return (cut.gather(-1, sibling.token) / sibling.q).clamp_max(1)


FAULT = Fault("top-p on the target in the test only", TopP, Where.LAW, 0.0680)
