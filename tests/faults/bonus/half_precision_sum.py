"""The bonus token is drawn by inverting a cumulative sum in bfloat16, where small masses vanish."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from faults.base import Fault, Where
from faults.inputs import WrongBonus
from resispec.trees import chain


def rounded(law: Tensor) -> Tensor:
    """The law (..., V) whose cumulative sums are rounded to bfloat16."""
    sums = law.cumsum(-1).to(torch.bfloat16).to(law.dtype)
    return torch.diff(sums, prepend=torch.zeros_like(sums[..., :1])) / sums[..., -1:]


FAULT = Fault(
    "bonus token by a sum in bfloat16",
    partial(WrongBonus, change=rounded),
    Where.VERIFY,
    0.0566,
    vocab=200,
    topology=chain(1),
)
