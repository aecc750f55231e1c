"""One uniform number decides whether a sibling is accepted and, if none is, which residual token is drawn.

What is left of the number once siblings were refused lies above their chances, so that the residual's first
tokens, by index, are never drawn.
"""

import torch

from faults.base import Fault, Where
from faults.walk import Walk
from resispec.distributions import invert
from resispec.trees import complete
from resispec.verifiers import Law


class UniformShared(Walk):
    """See `Walk`."""

    def draw(self, node, generator):
        """See `Walk.draw`."""
        uniform = torch.rand(1, generator=generator, dtype=torch.float64)
        index = int((node.law.select.cumsum(-1) <= uniform).sum())
        if index < len(node.children):
            return index, node.siblings[index]
        return None, int(invert(node.law.residual, uniform))

    def drawn(self, node):
        """See `Walk.drawn`: the part of every token's interval that lies above the chances of siblings."""
        ends = node.law.residual.cumsum(-1).clamp_min(node.law.select.sum())
        above = torch.diff(ends, prepend=node.law.select.sum()[None])
        return Law(node.law.select, above / above.sum().clamp_min(1e-30))


FAULT = Fault(
    "one uniform for test and residual", UniformShared, Where.VERIFY, 0.0922, vocab=4, topology=complete(2, 2)
)
