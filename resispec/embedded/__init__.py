"""A small real pair and three data sets, made at first use from text that every Python installation has.

What it is for: real decoding, with a real gap between target and draft, on a machine without network or
accelerator. Its numbers say nothing about large models. The first use trains the pair, which takes minutes;
every later one opens the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from resispec.data import Prompt, check_count, read_jsonl
from resispec.embedded import store
from resispec.embedded.corpus import NAMES, read_sources
from resispec.embedded.recipe import Recipe
from resispec.errors import InvalidInput
from resispec.training.recipe import EagleRecipe

if TYPE_CHECKING:  # naming the pair takes no torch
    from resispec.models import Pair

__all__ = [
    "DEFAULT_RECIPE",
    "EAGLE_RECIPE",
    "NAMES",
    "EagleRecipe",
    "EmbeddedDataset",
    "Recipe",
    "eagle_fingerprint",
    "ensure_eagle",
    "ensure_pair",
    "fingerprint",
    "load_eagle_pair",
    "load_pair",
]

DEFAULT_RECIPE = Recipe()
# The published loss; so small a drafter learns at a higher rate in fewer steps.
EAGLE_RECIPE = EagleRecipe(steps=400, batch_size=8, learning_rate=3e-3, warmup_steps=25)
# The files that decide the drafter.
_EAGLE_MODULES = ("embedded/eagle.py", "training/eagle.py", "models/eagle.py")


@cache
def fingerprint(recipe: Recipe = DEFAULT_RECIPE) -> str:
    """16 hexadecimal digits of everything that the pair depends on; quick, nothing is trained."""
    return store.make_key(read_sources(), repr(recipe))


def ensure_pair(
    recipe: Recipe = DEFAULT_RECIPE, cache_root: Path | None = None, expected: str | None = None
) -> Path:
    """The folder with `target/`, `draft/` and the prompt files, trained first if it is absent.

    cache_root: default `$RESISPEC_CACHE`, or `~/.cache/resispec`. expected: the fingerprint that the caller
    was promised.
    Raises InvalidInput when the cached folder is damaged, or when this installation would train another pair
    than expected.
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


@cache
def eagle_fingerprint(recipe: EagleRecipe = EAGLE_RECIPE, pair_recipe: Recipe = DEFAULT_RECIPE) -> str:
    """16 hexadecimal digits of everything that the EAGLE drafter depends on, its target included."""
    package = Path(__file__).parent.parent
    sources = {name: (package / name).read_bytes() for name in _EAGLE_MODULES}
    return store.make_key(sources | {"pair": fingerprint(pair_recipe).encode()}, repr(recipe))


def ensure_eagle(
    recipe: EagleRecipe = EAGLE_RECIPE,
    pair_recipe: Recipe = DEFAULT_RECIPE,
    cache_root: Path | None = None,
    expected: str | None = None,
) -> tuple[Path, Path]:
    """The folders of the pair and of its target's EAGLE drafter, trained first where they are absent.

    cache_root, expected: as for `ensure_pair`; raises InvalidInput as that.
    """
    found = eagle_fingerprint(recipe, pair_recipe)
    if expected not in (None, found):
        raise InvalidInput(
            f"the embedded EAGLE drafter {expected} was asked for; this installation makes {found}"
        )
    pair_folder = ensure_pair(pair_recipe, cache_root)

    def build(folder: Path) -> dict[str, object]:
        from resispec.embedded.eagle import train_drafter

        return train_drafter(recipe, pair_recipe, pair_folder, folder)

    return pair_folder, store.ensure_folder(pair_folder.parent, found, build)


def load_eagle_pair(device: str = "cpu", dtype: str = "float32", fingerprint: str | None = None) -> Pair:
    """The embedded target with its EAGLE drafter, both trained first if they are absent; see `load_pair`."""
    from resispec.models import load_eagle_pair as load_models

    pair_folder, folder = ensure_eagle(expected=fingerprint)
    return load_models(target=str(pair_folder / "target"), draft=str(folder), device=device, dtype=dtype)


@dataclass(frozen=True)
class EmbeddedDataset:
    """Held-out documents of one kind, in a fixed order.

    name: one of `NAMES`. path: a local .jsonl file that replaces the built-in one. fingerprint: as for
    `load_pair`.
    Raises InvalidInput for an unknown name.
    """

    name: str
    path: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InvalidInput(f"unknown embedded data set {self.name!r}; allowed: {', '.join(NAMES)}")

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` documents; the pair that has not seen them is trained first if it is absent."""
        check_count(count)
        if self.path is not None:
            return read_jsonl(Path(self.path), count)
        return read_jsonl(ensure_pair(expected=self.fingerprint) / f"{self.name}.jsonl", count)
