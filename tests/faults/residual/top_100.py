"""The residual is cut to its 100 largest tokens, as engines do that sort for a top-k on the way.

No vocabulary of up to 100 tokens shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from faults.base import Fault, Where
from faults.inputs import only_top
from resispec.trees import chain
from resispec.verifiers import Law, Standard


@dataclass(frozen=True)
class CutResidual(Standard):
    """The standard rule, whose last residual keeps `count` tokens."""

    count: int

    def law(self, *given):
        """See `SiblingRule.law`."""
        law = super().law(*given)
        return Law(law.select, only_top(law.residual, self.count))


FAULT = Fault(
    "residual cut to its top 100", partial(CutResidual, 100), Where.LAW, 0.1003, vocab=800, topology=chain(1)
)
