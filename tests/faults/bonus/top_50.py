"""The bonus token is drawn from the 50 likeliest: a default of top_k = 50 applied in one place only.

transformers' `generate` has such a default; no vocabulary of up to 50 tokens shows it.
"""

from functools import partial

from faults.base import Fault, Where
from faults.inputs import WrongBonus, only_top
from resispec.trees import chain

FAULT = Fault(
    "bonus token cut to its top 50",
    partial(WrongBonus, change=partial(only_top, count=50)),
    Where.VERIFY,
    0.1302,
    vocab=200,
    topology=chain(1),
)
