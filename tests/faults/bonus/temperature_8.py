"""The bonus token is drawn at T = .8 where 1 was asked for."""

from functools import partial

from faults.base import Fault, Where
from faults.inputs import WrongBonus, tempered
from resispec.trees import chain

FAULT = Fault(
    "bonus token at T = .8",
    partial(WrongBonus, change=partial(tempered, temperature=0.8)),
    Where.VERIFY,
    0.0789,
    vocab=100,
    topology=chain(1),
)
