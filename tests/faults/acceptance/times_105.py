"""Siblings are accepted 1.05 times as often as they may be, in vocabularies of more than 5 tokens only.

Somebody tuned the acceptance, and kept small tests green.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from faults.base import Fault, Where
from faults.sequential import Sequential
from resispec.trees import complete


@dataclass(frozen=True)
class MoreOften(Sequential):
    """factor: how much more often."""

    factor: float

    def chance(self, sibling):
        """See `Sequential.chance`."""
        factor = self.factor if sibling.target.shape[-1] > 5 else 1.0
        return (factor * sibling.p / sibling.q).clamp_max(1)


FAULT = Fault(
    "acceptance times 1.05 (V > 5)",
    partial(MoreOften, 1.05),
    Where.LAW,
    0.0115,
    vocab=50,
    topology=complete(2, 2),
)
