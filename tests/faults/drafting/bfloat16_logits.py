"""Siblings are drawn from logits in bfloat16, and the ratio uses the draft's law in full precision.

DeepSpec (issues 31 and 48) differed by a thousandth.
"""

from __future__ import annotations

import torch
from torch import Tensor

from faults.base import Fault, Where
from resispec.draws import Iid
from resispec.verifiers import Standard


def rounded(law: Tensor) -> Tensor:
    """A law (..., V) whose logarithms were rounded to bfloat16."""
    return torch.softmax(law.log().to(torch.bfloat16).to(law.dtype), -1)


class Bfloat16Logits(Iid):
    """`laws` says the precise q."""

    def draw(self, draft_probs, *given):
        """See `Draws.draw`."""
        return super().draw(rounded(draft_probs), *given)

    def weights(self, draft_probs, siblings):
        """See `Draws.weights`."""
        return super().weights(rounded(draft_probs), siblings)


FAULT = Fault("draft drawn from bfloat16 logits", Standard, Where.DRAFTER, 0.0007, draws=Bfloat16Logits())
