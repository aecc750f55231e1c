"""A small real pair and three data sets, made at first use from text that every Python installation has.

What it is for: real decoding, with a real gap between target and draft, on a machine without network or accelerator. Its
numbers say nothing about large models. The first use trains the pair, which takes minutes; every later one opens the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from resispec.data import Prompt, read_jsonl
from resispec.embedded import store
from resispec.embedded.corpus import NAMES, read_sources
from resispec.embedded.recipe import Recipe
from resispec.embedded.train import train_pair
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.models import load_pair as load_models

__all__ = ["DEFAULT_RECIPE", "NAMES", "EmbeddedDataset", "Recipe", "ensure_pair", "fingerprint", "load_pair"]

DEFAULT_RECIPE = Recipe()


@cache
def fingerprint(recipe: Recipe = DEFAULT_RECIPE) -> str:
    """16 hexadecimal digits of everything that the pair depends on, in well under a second and without training."""
    return store.make_key(read_sources(), repr(recipe))


def ensure_pair(recipe: Recipe = DEFAULT_RECIPE, cache_root: Path | None = None) -> Path:
    """The folder with `target/`, `draft/` and the prompt files, trained first if it is absent.

    cache_root: default `$RESISPEC_CACHE`, or `~/.cache/resispec`. Raises InvalidInput when the cached folder is damaged.
    """
    root = store.default_root() if cache_root is None else Path(cache_root)
    return store.ensure_folder(root, fingerprint(recipe), lambda folder: train_pair(recipe, read_sources(), folder))


def load_pair(device: str = "cpu", dtype: str = "float32", cache_root: Path | None = None) -> Pair:
    """The embedded pair, trained first if it is absent. device, dtype: as for `resispec.models.load_pair`."""
    folder = ensure_pair(cache_root=cache_root)
    return load_models(target=str(folder / "target"), draft=str(folder / "draft"), device=device, dtype=dtype)


@dataclass(frozen=True)
class EmbeddedDataset:
    """Held-out documents of one kind, in a fixed order.

    name: one of `NAMES`. path: a local .jsonl file that replaces the built-in one.
    Raises InvalidInput for an unknown name.
    """

    name: str
    path: str | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InvalidInput(f"unknown embedded data set {self.name!r}; allowed: {', '.join(NAMES)}")

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` documents, after training the pair whose held-out text they are, if it is absent."""
        path = ensure_pair() / f"{self.name}.jsonl" if self.path is None else Path(self.path)
        return read_jsonl(path, count)
