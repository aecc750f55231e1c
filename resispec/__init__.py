"""resispec: the referee of multi-candidate speculative sampling.

`generate` and `Speculator` continue a prompt, `transformers` holds what transformers' own `generate` takes.
They are imported when they are asked for: naming a tree or a prompt takes no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resispec import transformers
    from resispec.generation import Continuation, Speculator, generate

__all__ = ["Continuation", "Speculator", "generate", "transformers"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Names that the package offers at its top. Raises AttributeError for any other name."""
    if name not in __all__:
        raise AttributeError(f"module 'resispec' has no attribute {name!r}")
    if name == "transformers":
        return import_module("resispec.transformers")
    return getattr(import_module("resispec.generation"), name)
