"""Small real models and three data sets, made at first use from text that every Python installation has.

They are for real decoding, with a real gap between target and draft, on a machine without network or
accelerator. Their numbers say nothing about large models. The first use trains a model, which takes minutes;
every later one opens the cache. Text, targets, drafts and EAGLE drafters are cached apart: a folder is named
by everything that decides it, so training one anew leaves the others.
"""

from resispec.embedded.corpus import NAMES
from resispec.embedded.pairs import (
    EmbeddedDataset,
    inflated_fingerprint,
    load_eagle_pair,
    load_inflated_pair,
    load_pair,
    pair_fingerprint,
)
from resispec.embedded.recipe import (
    DRAFTS,
    EAGLE3_RECIPE,
    EAGLE_RECIPE,
    TARGETS,
    TEXT_RECIPE,
    DrafterRecipe,
    ModelRecipe,
    Sizes,
    TextRecipe,
    draft_recipe,
    drafter_recipe,
    target_recipe,
)
from resispec.embedded.shapes import PAIR_SHAPES

__all__ = [
    "DRAFTS", "EAGLE3_RECIPE", "EAGLE_RECIPE", "NAMES", "PAIR_SHAPES", "TARGETS", "TEXT_RECIPE",
    "DrafterRecipe", "EmbeddedDataset", "ModelRecipe", "Sizes", "TextRecipe", "draft_recipe",
    "drafter_recipe", "inflated_fingerprint", "load_eagle_pair", "load_inflated_pair", "load_pair",
    "pair_fingerprint", "target_recipe",
]  # fmt: skip
