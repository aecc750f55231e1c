"""resispec: the referee of multi-candidate speculative sampling.

`generate` and `Speculator` continue a prompt; `transformers` serves transformers' own `generate`.
All of them are imported on first use, so that naming a tree or a prompt imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from resispec.errors import guard_imports

if TYPE_CHECKING:
    from resispec import transformers
    from resispec.generation import Continuation, Speculator, generate

__all__ = ["Continuation", "Speculator", "generate", "transformers"]
__version__ = "0.1.0"

guard_imports(__name__)


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` on first use. Raises AttributeError for any other name."""
    if name not in __all__:
        raise AttributeError(f"module 'resispec' has no attribute {name!r}")
    if name == "transformers":
        return import_module("resispec.transformers")
    return getattr(import_module("resispec.generation"), name)
