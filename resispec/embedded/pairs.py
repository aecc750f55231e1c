"""Loaders of the embedded pairs and data sets; naming one does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

from resispec.data import KeptDataset
from resispec.embedded.corpus import NAMES
from resispec.embedded.recipe import TEXT_RECIPE, TextRecipe, drafter_recipe, model_recipes
from resispec.embedded.shapes import INFLATING_VERSION, find_shape
from resispec.kept import check_expected, make_key

if TYPE_CHECKING:
    from resispec.models import Pair

_KIND = "embedded models"


def pair_fingerprint(target: str, draft: str | None) -> str:
    """The keys of the models of a pair, which name their folders."""
    return "-".join(recipe.key() for recipe in model_recipes(target, draft))


def inflated_fingerprint(shape: str, target: str, draft: str) -> str:
    """16 hexadecimal digits of everything that an inflated pair depends on,
    the small pair included.
    """
    recipe = (find_shape(shape), INFLATING_VERSION)
    return make_key(recipe, {"pair": pair_fingerprint(target, draft).encode()})


def load_pair(
    target: str = "2m",
    draft: str | None = "80k",
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """A target of `TARGETS` and a draft of `DRAFTS` that it taught, or no draft;
    trained first if absent.

    device, dtype: as for `resispec.models.load_pair`. fingerprint: that of the expected pair, None
    for any. Raises InvalidInput for an unknown name, and when this installation would train another
    pair than expected.
    """
    from resispec.models import load_pair as load_models

    check_expected(_KIND, fingerprint, pair_fingerprint(target, draft))
    folders = [str(recipe.folder()) for recipe in model_recipes(target, draft)]
    return load_models(folders[0], folders[1] if draft else None, device=device, dtype=dtype)


def load_eagle_pair(
    target: str = "2m",
    num_draftable: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """An embedded target with an EAGLE drafter of its own, see `drafter_recipe`;
    otherwise as `load_pair`.
    """
    from resispec.models import load_eagle_pair as load_models

    drafter = drafter_recipe(target, num_draftable)
    check_expected(_KIND, fingerprint, drafter.key())
    return load_models(
        str(drafter.target.folder()), str(drafter.folder()), device=device, dtype=dtype
    )


def load_inflated_pair(
    shape: str = "llama2_7b__jf68m",
    target: str = "2m",
    draft: str = "80k",
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """An embedded pair with its own laws and the cost of a pair of `PAIR_SHAPES`;
    otherwise as `load_pair`.

    The pair is made in memory each time, on `device` and in the precision `dtype`, by
    `resispec.models.inflate`. Raises InvalidInput as `load_pair`, for an unknown shape, and for a
    shape that cannot hold the models.
    """
    from resispec.models.inflate import inflate_pair

    sizes = find_shape(shape)
    check_expected(_KIND, fingerprint, inflated_fingerprint(shape, target, draft))
    small = load_pair(target, draft)  # in float32, so that every number is rounded once
    return inflate_pair(small, asdict(sizes.target), asdict(sizes.draft), device, dtype)


@dataclass(frozen=True)
class EmbeddedDataset(KeptDataset):
    """Held-out documents of one kind. name: one of `NAMES`."""

    recipe: ClassVar[TextRecipe] = TEXT_RECIPE
    files: ClassVar[Mapping[str, str]] = {name: f"{name}.jsonl" for name in NAMES}
