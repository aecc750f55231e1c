"""Acceptance rules and tree verifiers, one file for each, found by class or by name.

To add a verifier here, write a file with a class that has the decorator `register`. A verifier of your own
needs no decorator: a YAML's `_target_` or `path/to/file.py:Class` names its class, or its package has an
entry point in the group `resispec.verifiers`.
"""

from importlib import import_module
from pkgutil import iter_modules

from resispec.verifiers.base import Draws, Law, Outcomes, SiblingRule, Verifier
from resispec.verifiers.registry import available, get_rule, get_verifier, register
from resispec.verifiers.sample_outcome import draw_outcome, read_verdict
from resispec.verifiers.top_down import TopDown, as_verifier

# Names are listed in the order in which they are imported.
# isort: off
from resispec.verifiers.standard import Standard
from resispec.verifiers.resispec import ResiSpec
from resispec.verifiers.kseq import KSeq
from resispec.verifiers.naive import Naive
from resispec.verifiers.greedy import Greedy
from resispec.verifiers.optimal import Optimal
from resispec.verifiers.traversal import Traversal
from resispec.verifiers.block import Block
from resispec.verifiers.hsd import Hsd
from resispec.verifiers.spec_hub import SpecHub
from resispec.verifiers.gbv import GreedyMultiPath
from resispec.verifiers.khisti import Khisti
from resispec.verifiers.level_optimal import LevelOptimal
# isort: on

__all__ = [
    "BASELINES",
    "Block",
    "Draws",
    "Greedy",
    "GreedyMultiPath",
    "Hsd",
    "KSeq",
    "Khisti",
    "Law",
    "LevelOptimal",
    "Naive",
    "Optimal",
    "Outcomes",
    "ResiSpec",
    "SiblingRule",
    "SpecHub",
    "Standard",
    "TopDown",
    "Traversal",
    "Verifier",
    "as_verifier",
    "available",
    "draw_outcome",
    "get_rule",
    "get_verifier",
    "read_verdict",
    "register",
]

# Verifiers are compared with the baselines, so an audit that does not find the baselines exact fails.
BASELINES = ("standard",)

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
