"""Loaders of SmolLM2-135M-Instruct with its drafters; naming a pair does not import torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.smollm2.recipe import DRAFTERS, EAGLE3, recipes
from resispec.errors import InvalidInput
from resispec.kept import check_expected
from resispec.loaders import of_eagle

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
    """SmolLM2-135M-Instruct with a distilled draft, or without one; each is made if it is absent.

    draft: a name of `recipes.smollm2.recipe.DRAFTERS`, but for the EAGLE-3 drafter's. device,
    dtype: as for `resispec.models.load_pair`. fingerprint: that of the expected pair, None for any.
    Raises InvalidInput for another draft, when this installation would make another pair than
    expected, and when the target's package cannot be fetched.
    """
    from recipes.smollm2.train import read_token_ids
    from resispec.models import load_pair as load_models

    allowed = [name for name in DRAFTERS if name != EAGLE3]
    if draft not in (None, *allowed):
        raise InvalidInput(
            f"unknown SmolLM2 draft {draft!r}; allowed: {', '.join(allowed)}, or none"
        )
    target, *drafts = _folders(draft, fingerprint)
    pair: Any = load_models(
        str(target), str(drafts[0]) if drafts else None, device=device, dtype=dtype
    )
    if not drafts:
        return pair
    return replace(
        pair, draft=pair.draft.drafting(read_token_ids(drafts[0]).to(pair.target.device))
    )


@of_eagle
def load_eagle_pair(
    device: str = "cpu", dtype: str = "float32", fingerprint: str | None = None
) -> Pair:
    """SmolLM2-135M-Instruct with its EAGLE-3 drafter; otherwise as `load_pair`."""
    from resispec.models import load_eagle_pair as load_models

    target, drafter = _folders(EAGLE3, fingerprint)
    return load_models(str(target), str(drafter), device=device, dtype=dtype)


def _folders(draft: str | None, fingerprint: str | None) -> list[Path]:
    """The folders of the pair's models, which are made first if they are absent."""
    check_expected("SmolLM2 models", fingerprint, pair_fingerprint(draft))
    return [recipe.folder() for recipe in recipes(draft)]
