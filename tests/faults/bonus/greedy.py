"""The bonus token is the likeliest one, whatever the temperature."""

from functools import partial

from faults.base import Fault, Where
from faults.inputs import WrongBonus, argmax
from resispec.trees import chain

FAULT = Fault(
    "bonus token greedy",
    partial(WrongBonus, change=argmax),
    Where.VERIFY,
    0.3677,
    vocab=6,
    topology=chain(1),
)
