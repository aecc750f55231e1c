"""Loaders of SmolLM2-135M-Instruct with its drafters; naming a pair takes no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resispec.kept import check_expected
from resispec.smollm2.recipe import EAGLE3, recipes

if TYPE_CHECKING:
    from resispec.models import Pair


def pair_fingerprint(draft: str | None = None) -> str:
    """The keys of the models of a pair, which name their folders."""
    return "-".join(recipe.key() for recipe in recipes(draft))


def load_pair(
    draft: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    fingerprint: str | None = None,
) -> Pair:
    """SmolLM2-135M-Instruct with a draft of `DRAFTERS`, or none; each is made first where it is absent.

    device, dtype: as for `resispec.models.load_pair`. fingerprint: the pair that is expected, any when None.
    Raises InvalidInput for an unknown name, when this installation would make another pair than expected, and
    when the target's package cannot be had.
    """
    from resispec.models import load_eagle_pair
    from resispec.models import load_pair as load_models
    from resispec.smollm2.train import read_token_ids

    check_expected("SmolLM2 models", fingerprint, pair_fingerprint(draft))
    folders = [recipe.folder() for recipe in recipes(draft)]
    target, drafter = str(folders[0]), str(folders[1]) if draft else None
    if draft == EAGLE3:
        return load_eagle_pair(target, drafter, device=device, dtype=dtype)
    pair: Any = load_models(target, drafter, device=device, dtype=dtype)
    if draft is None:
        return pair
    return replace(pair, draft=pair.draft.drafting(read_token_ids(folders[1]).to(pair.target.device)))
