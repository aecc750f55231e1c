"""The bonus token is drawn at T = .9 where 1 was asked for."""

from functools import partial

from faults.base import Fault, Where
from faults.inputs import WrongBonus, tempered
from resispec.trees import chain

FAULT = Fault(
    "bonus token at T = .9",
    partial(WrongBonus, change=partial(tempered, temperature=0.9)),
    Where.VERIFY,
    0.0358,
    vocab=100,
    topology=chain(1),
)
