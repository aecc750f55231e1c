"""Training of drafters; naming a recipe takes no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resispec.training.recipe import Eagle3Recipe, EagleRecipe

if TYPE_CHECKING:
    from resispec.training.base import DrafterTraining, Sequences

CHECKPOINT = "checkpoint.pt"
"""Name of the file that a training goes on from."""


def new_training(target: Any, sequences: Sequences, recipe: EagleRecipe | Eagle3Recipe) -> DrafterTraining:
    """The training of a new drafter for a transformers Llama, of the kind that the recipe is for.

    Raises InvalidInput as `new_drafter` and `new_eagle3`.
    """
    from resispec.training.eagle import EagleTraining, new_drafter
    from resispec.training.eagle3 import Eagle3Training, new_eagle3

    if isinstance(recipe, Eagle3Recipe):
        return Eagle3Training(target, new_eagle3(target, sequences, recipe), sequences, recipe)
    return EagleTraining(target, new_drafter(target, recipe.seed), sequences, recipe)
