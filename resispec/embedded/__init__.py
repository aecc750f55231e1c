"""Small real models and three data sets, made at first use from text that every Python installation has.

What they are for: real decoding, with a real gap between target and draft, on a machine without network or
accelerator. Their numbers say nothing about large models. The first use trains a model, which takes minutes;
every later one opens the cache. Text, targets, drafts and EAGLE drafters are cached apart: a folder is named
by everything that decides it, so training one anew leaves the others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from resispec.data import Prompt, check_count, read_jsonl
from resispec.embedded import store
from resispec.embedded.corpus import NAMES, read_sources
from resispec.embedded.recipe import (
    DRAFTS,
    EAGLE3_RECIPE,
    EAGLE_RECIPE,
    TARGETS,
    TEXT_RECIPE,
    ModelRecipe,
    Sizes,
    TextRecipe,
    draft_recipe,
    eagle_recipe,
    target_recipe,
)
from resispec.embedded.shapes import PAIR_SHAPES, find_shape
from resispec.errors import InvalidInput
from resispec.training.recipe import Eagle3Recipe, EagleRecipe

if TYPE_CHECKING:  # naming a pair takes no torch
    from resispec.models import Pair

__all__ = [
    "DRAFTS",
    "EAGLE3_RECIPE",
    "EAGLE_RECIPE",
    "NAMES",
    "PAIR_SHAPES",
    "TARGETS",
    "TEXT_RECIPE",
    "Eagle3Recipe",
    "EagleRecipe",
    "EmbeddedDataset",
    "ModelRecipe",
    "Sizes",
    "TextRecipe",
    "draft_recipe",
    "eagle_fingerprint",
    "eagle_recipe",
    "ensure_eagle",
    "ensure_model",
    "ensure_text",
    "inflated_fingerprint",
    "load_eagle_pair",
    "load_inflated_pair",
    "load_pair",
    "model_key",
    "pair_fingerprint",
    "target_recipe",
    "text_fingerprint",
]

# The files that decide what is made.
_TEXT_MODULES = ("embedded/corpus.py", "embedded/text.py")
_MODEL_MODULES = ("embedded/muon.py", "embedded/train.py")
_EAGLE_MODULES = ("embedded/eagle.py", "training/base.py", "training/eagle.py", "models/eagle.py")
_EAGLE3_MODULES = ("training/eagle3.py", "models/eagle3.py")
_INFLATING_MODULES = ("models/inflate.py", "models/placement.py")


@cache
def text_fingerprint(recipe: TextRecipe = TEXT_RECIPE) -> str:
    """16 hexadecimal digits of everything that tokenizer and prompts depend on; quick, nothing is made."""
    return store.make_key(read_sources(), repr(recipe), _TEXT_MODULES)


@cache
def model_key(recipe: ModelRecipe) -> str:
    """16 hexadecimal digits of everything that a model depends on, its teacher included."""
    return store.make_key({"text": text_fingerprint(recipe.text).encode()}, repr(recipe), _MODEL_MODULES)


@cache
def pair_fingerprint(target: str, draft: str | None) -> str:
    """The keys of the models of a pair, which name their folders."""
    recipes = [target_recipe(target)] + ([] if draft is None else [draft_recipe(draft, target)])
    return "-".join(map(model_key, recipes))


@cache
def eagle_fingerprint(target: ModelRecipe, recipe: EagleRecipe | Eagle3Recipe = EAGLE_RECIPE) -> str:
    """16 hexadecimal digits of everything that an EAGLE drafter depends on, its target included."""
    own = _EAGLE3_MODULES if isinstance(recipe, Eagle3Recipe) else ()
    return store.make_key({"target": model_key(target).encode()}, repr(recipe), (*_EAGLE_MODULES, *own))


@cache
def inflated_fingerprint(shape: str, target: str, draft: str) -> str:
    """16 hexadecimal digits of everything that an inflated pair depends on, the small pair included."""
    small = pair_fingerprint(target, draft)
    return store.make_key({"pair": small.encode()}, repr(find_shape(shape)), _INFLATING_MODULES)


def ensure_text(recipe: TextRecipe = TEXT_RECIPE, cache_root: Path | None = None) -> Path:
    """The folder with the tokenizer, the training streams and the prompt files, made first if it is absent.

    cache_root: default `$RESISPEC_CACHE`, or `~/.cache/resispec`.
    Raises InvalidInput when the cached folder is damaged or the cache cannot be written.
    """

    def build(folder: Path) -> dict[str, object]:
        from resispec.embedded.text import make_text

        return make_text(recipe, read_sources(), folder)

    return store.ensure_folder(cache_root, text_fingerprint(recipe), build)


def ensure_model(recipe: ModelRecipe, name: str = "model", cache_root: Path | None = None) -> Path:
    """The folder of a model, trained first if it is absent, after its text and its teacher.

    name: of the model, for the progress bar. cache_root, raises: as for `ensure_text`.
    """
    text = ensure_text(recipe.text, cache_root)
    teacher = None if recipe.teacher is None else ensure_model(recipe.teacher, "teacher", cache_root)

    def build(folder: Path) -> dict[str, object]:
        from resispec.embedded.train import train_model

        return train_model(recipe, name, text, teacher, folder)

    return store.ensure_folder(cache_root, model_key(recipe), build)


def ensure_eagle(
    target: ModelRecipe, recipe: EagleRecipe | Eagle3Recipe = EAGLE_RECIPE, cache_root: Path | None = None
) -> Path:
    """The folder of a target's EAGLE drafter, trained first if it is absent; otherwise as `ensure_model`."""
    text = ensure_text(target.text, cache_root)
    target_folder = ensure_model(target, "target", cache_root)

    def build(folder: Path) -> dict[str, object]:
        from resispec.embedded.eagle import train_drafter

        return train_drafter(recipe, target, text, target_folder, folder)

    return store.ensure_folder(cache_root, eagle_fingerprint(target, recipe), build)


def load_pair(
    target: str = "2m",
    draft: str | None = "80k",
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """A target of `TARGETS` with a draft of `DRAFTS` that it taught, or none; trained first where absent.

    device, dtype: as for `resispec.models.load_pair`. fingerprint: the pair that is expected, any when None.
    Raises InvalidInput for an unknown name, and when this installation would train another pair than
    expected.
    """
    from resispec.models import load_pair as load_models

    _check_expected(fingerprint, pair_fingerprint(target, draft))
    target_folder = ensure_model(target_recipe(target), f"target {target}")
    draft_folder = None
    if draft is not None:
        draft_folder = str(ensure_model(draft_recipe(draft, target), f"draft {draft} of {target}"))
    return load_models(target=str(target_folder), draft=draft_folder, device=device, dtype=dtype)


def load_eagle_pair(
    target: str = "2m",
    num_draftable: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """An embedded target with an EAGLE drafter of its own, see `eagle_recipe`; otherwise as `load_pair`."""
    from resispec.models import load_eagle_pair as load_models

    of_target, recipe = target_recipe(target), eagle_recipe(num_draftable)
    _check_expected(fingerprint, eagle_fingerprint(of_target, recipe))
    target_folder = ensure_model(of_target, f"target {target}")
    folder = ensure_eagle(of_target, recipe)
    return load_models(target=str(target_folder), draft=str(folder), device=device, dtype=dtype)


def load_inflated_pair(
    shape: str = "llama2_7b__jf68m",
    target: str = "2m",
    draft: str = "80k",
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """The embedded pair with the laws that it has and the cost of a pair of `PAIR_SHAPES`; see `load_pair`.

    Made in memory each time, on the device and in the precision asked for: see `resispec.models.inflate`.
    Raises InvalidInput as `load_pair`, for an unknown shape, and for one that cannot hold the models.
    """
    from resispec.models.inflate import inflate_pair

    sizes = find_shape(shape)
    _check_expected(fingerprint, inflated_fingerprint(shape, target, draft))
    small = load_pair(target, draft)  # in float32, so that every number is rounded once
    return inflate_pair(small, asdict(sizes.target), asdict(sizes.draft), device, dtype)


def _check_expected(expected: str | None, found: str) -> None:
    if expected not in (None, found):
        raise InvalidInput(f"the embedded models {expected} were asked for; this installation makes {found}")


@dataclass(frozen=True)
class EmbeddedDataset:
    """Held-out documents of one kind, in a fixed order.

    name: one of `NAMES`. path: a local .jsonl file that replaces the built-in one. fingerprint: of the text
    that is expected, any when None.
    Raises InvalidInput for an unknown name.
    """

    name: str
    path: str | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InvalidInput(f"unknown embedded data set {self.name!r}; allowed: {', '.join(NAMES)}")

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` documents; the text is made first if it is absent."""
        check_count(count)
        if self.path is not None:
            return read_jsonl(Path(self.path), count)
        _check_expected(self.fingerprint, text_fingerprint())
        return read_jsonl(ensure_text() / f"{self.name}.jsonl", count)
