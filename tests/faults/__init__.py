"""Planted faults: verifiers, drafters and loops that are wrong in one small way, and innocent look-alikes.

One fault a file. `FAULTS` holds all of them by name; a file is found when it lies in one of the folders here
and has a `FAULT`. What a fault offers is in `faults.base`, how its bias is computed in `faults.truth`.

A fault is built on the exact parts by the smallest change: `sequential` and `walk` are the standard rule and
the walk down a tree in parts that can be changed, `inputs` gives a verifier wrong laws.
"""

from importlib import import_module
from pkgutil import walk_packages

from faults.base import Fault, Where

__all__ = ["FAULTS", "Fault", "Where"]

_MODULES = [import_module(found.name) for found in walk_packages(__path__, f"{__name__}.")]
_FOUND = [module.FAULT for module in _MODULES if hasattr(module, "FAULT")]
FAULTS: dict[str, Fault] = {fault.name: fault for fault in _FOUND}
