"""Acceptance rules and tree verifiers, one file for each, found by class or by name.

To add a verifier here, write a file with a class that has the decorator `register`. A verifier of
your own needs no decorator: a YAML's `_target_` or `path/to/file.py:Class` names its class, or its
package has an entry point in the group `resispec.verifiers`.
"""

from importlib import import_module
from pkgutil import iter_modules

from resispec.verifiers.base import Draws as Draws
from resispec.verifiers.base import DrawsKind as DrawsKind
from resispec.verifiers.base import Law as Law
from resispec.verifiers.base import Outcomes as Outcomes
from resispec.verifiers.base import SiblingRule as SiblingRule
from resispec.verifiers.base import Verifier as Verifier
from resispec.verifiers.registry import available as available
from resispec.verifiers.registry import get_rule as get_rule
from resispec.verifiers.registry import get_verifier as get_verifier
from resispec.verifiers.registry import register as register
from resispec.verifiers.sample_outcome import draw_outcome as draw_outcome
from resispec.verifiers.sample_outcome import read_verdict as read_verdict
from resispec.verifiers.top_down import TopDown as TopDown
from resispec.verifiers.top_down import as_verifier as as_verifier

# Names are listed in the order in which they are imported.
# isort: off
from resispec.verifiers.standard import Standard as Standard
from resispec.verifiers.resispec import ResiSpec as ResiSpec
from resispec.verifiers.kseq import KSeq as KSeq
from resispec.verifiers.naive import Naive as Naive
from resispec.verifiers.greedy import Greedy as Greedy
from resispec.verifiers.optimal import Optimal as Optimal
from resispec.verifiers.traversal import Traversal as Traversal
from resispec.verifiers.block import Block as Block
from resispec.verifiers.hsd import Hsd as Hsd
from resispec.verifiers.spec_hub import SpecHub as SpecHub
from resispec.verifiers.gbv import GreedyMultiPath as GreedyMultiPath
from resispec.verifiers.khisti import Khisti as Khisti
from resispec.verifiers.level_optimal import LevelOptimal as LevelOptimal
from resispec.verifiers.dial import Dial as Dial
from resispec.verifiers.dial import TreeDial as TreeDial
from resispec.verifiers.lenience import Lenience as Lenience
from resispec.verifiers.typical import Typical as Typical
from resispec.verifiers.relaxed import Relaxed as Relaxed
# isort: on

# Verifiers are compared with the baselines, so an audit that does not find the baselines exact
# fails.
BASELINES = ("standard",)

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
