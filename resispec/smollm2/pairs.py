"""Loaders of SmolLM2-135M-Instruct with its drafters; naming a pair takes no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resispec.kept import check_expected
from resispec.smollm2.recipe import model_recipes

if TYPE_CHECKING:
    from resispec.models import Pair


def pair_fingerprint(draft: str | None = None) -> str:
    """The keys of the models of a pair, which name their folders."""
    return "-".join(recipe.key() for recipe in model_recipes(draft))


def load_pair(
    draft: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """SmolLM2-135M-Instruct with a draft of `DRAFTS`, or none; each is made first where it is absent.

    device, dtype: as for `resispec.models.load_pair`. fingerprint: the pair that is expected, any when None.
    Raises InvalidInput for an unknown name, when this installation would make another pair than expected, and
    when the target's package cannot be had.
    """
    from resispec.models import load_pair as load_models

    check_expected("SmolLM2 models", fingerprint, pair_fingerprint(draft))
    folders = [str(recipe.folder()) for recipe in model_recipes(draft)]
    return load_models(folders[0], folders[1] if draft else None, device=device, dtype=dtype)
