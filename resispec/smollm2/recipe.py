"""Recipes of SmolLM2-135M-Instruct and of all that is made for it: each knows its key and makes its folder.

A key is as those of `resispec.embedded.recipe`. Naming a folder takes neither torch nor a network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resispec.kept import Kept, entry, make_key
from resispec.smollm2.package import SMOLLM2, Package, fetched


@dataclass(frozen=True)
class TargetRecipe(Kept):
    """The GGUF file of a package as a folder that transformers reads, see `resispec.smollm2.convert`.

    version: of the code that converts; raise it with a change of its results.
    """

    package: Package = SMOLLM2
    version: int = field(default=1, init=False)

    def key(self) -> str:
        """See `Kept.key`."""
        return make_key(self, {})

    def make(self, folder: Path) -> dict[str, Any]:
        """Fetch the package's file, unless it is in the cache, and convert it."""
        from resispec.smollm2.convert import convert

        return convert(fetched(self.package), folder)


TARGET = TargetRecipe()
"""The recipe of the target."""
DRAFTS: dict[str, Kept] = {}
"""Recipes of drafts by name."""


def model_recipes(draft: str | None = None) -> list[Kept]:
    """The recipes of the target, and of a draft of `DRAFTS`, if any is named.

    Raises InvalidInput for another name.
    """
    return [TARGET] if draft is None else [TARGET, entry("SmolLM2 draft", draft, DRAFTS)]
