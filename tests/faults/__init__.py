"""Planted faults: verifiers, drafters and loops wrong in one small way, and innocent look-alikes.

A module holds the faults of one kind, in its table FAULTS; here all of them stand by name. A fault
is built on the exact parts by the smallest change (`parts`). `truth` computes its bias.
"""

from tests.faults import drafting, innocent, inputs, moved, randomness, rules, walks
from tests.faults.parts import Fault, Where

__all__ = ["FAULTS", "Fault", "Where"]

_KINDS = (rules, inputs, walks, moved, drafting, randomness, innocent)
FAULTS: dict[str, Fault] = {fault.name: fault for kind in _KINDS for fault in kind.FAULTS}
