"""The kinds of draws, a file each: how siblings are chosen from the draft's law.

To add a kind here, write a file with a subclass of `DrawsKind` that has the decorator `known`. A
kind of your own needs no decorator; pass an object of its class wherever draws are asked for.
"""

from importlib import import_module
from pkgutil import iter_modules

from resispec.draws.base import Draws, DrawsKind, known

# Kinds are listed in the order in which they are imported.
# isort: off
from resispec.draws.iid import Iid
from resispec.draws.without_replacement import WithoutReplacement
from resispec.draws.point_mass import PointMass
from resispec.draws.greedy import Greedy
from resispec.draws.hub import Hub
# isort: on

__all__ = [
    "Draws",
    "DrawsKind",
    "Greedy",
    "Hub",
    "Iid",
    "PointMass",
    "WithoutReplacement",
    "known",
]

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
