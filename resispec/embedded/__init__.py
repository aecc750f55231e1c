"""A small real pair and three data sets, made at first use from text that every Python installation has.

What it is for: real decoding, with a real gap between target and draft, on a machine without network or accelerator. Its
numbers say nothing about large models. The first use trains the pair, which takes minutes; every later one opens the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from resispec.data import Prompt, read_jsonl
from resispec.embedded import store
from resispec.embedded.corpus import NAMES, read_sources
from resispec.embedded.recipe import Recipe
from resispec.errors import InvalidInput

if TYPE_CHECKING:  # naming the pair takes no torch
    from resispec.models import Pair

__all__ = ["DEFAULT_RECIPE", "NAMES", "EmbeddedDataset", "Recipe", "ensure_pair", "fingerprint", "load_pair"]

DEFAULT_RECIPE = Recipe()


@cache
def fingerprint(recipe: Recipe = DEFAULT_RECIPE) -> str:
    """16 hexadecimal digits of everything that the pair depends on, in well under a second and without training."""
    return store.make_key(read_sources(), repr(recipe))


def ensure_pair(recipe: Recipe = DEFAULT_RECIPE, cache_root: Path | None = None, expected: str | None = None) -> Path:
    """The folder with `target/`, `draft/` and the prompt files, trained first if it is absent.

    cache_root: default `$RESISPEC_CACHE`, or `~/.cache/resispec`. expected: the fingerprint that the caller was promised.
    Raises InvalidInput when the cached folder is damaged, or when this installation would train another pair than expected.
    """
    found = fingerprint(recipe)
    if expected not in (None, found):
        raise InvalidInput(f"the embedded pair {expected} was asked for; this installation makes {found}")
    root = store.default_root() if cache_root is None else Path(cache_root)

    def build(folder: Path) -> dict[str, object]:
        from resispec.embedded.train import train_pair

        return train_pair(recipe, read_sources(), folder)

    return store.ensure_folder(root, found, build)


def load_pair(device: str = "cpu", dtype: str = "float32", fingerprint: str | None = None) -> Pair:
    """The embedded pair, trained first if it is absent.

    device, dtype: as for `resispec.models.load_pair`. fingerprint: the pair that is expected, any when None.
    """
    from resispec.models import load_pair as load_models

    folder = ensure_pair(expected=fingerprint)
    return load_models(target=str(folder / "target"), draft=str(folder / "draft"), device=device, dtype=dtype)


@dataclass(frozen=True)
class EmbeddedDataset:
    """Held-out documents of one kind, in a fixed order.

    name: one of `NAMES`. path: a local .jsonl file that replaces the built-in one. fingerprint: as for `load_pair`.
    Raises InvalidInput for an unknown name.
    """

    name: str
    path: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InvalidInput(f"unknown embedded data set {self.name!r}; allowed: {', '.join(NAMES)}")

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` documents, after training the pair whose held-out text they are, if it is absent."""
        path = Path(self.path) if self.path is not None else ensure_pair(expected=self.fingerprint) / f"{self.name}.jsonl"
        return read_jsonl(path, count)
