"""The residual is cut to its 1,000 largest tokens.

No vocabulary of up to 1,000 tokens shows it, and what is lost in a large one is spread over many tokens.
"""

from functools import partial

from faults.base import Fault, Where
from faults.residual.top_100 import CutResidual
from resispec.trees import chain

FAULT = Fault(
    "residual cut to its top 1,000",
    partial(CutResidual, 1000),
    Where.LAW,
    0.0482,
    vocab=4000,
    topology=chain(1),
)
