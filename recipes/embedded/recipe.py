"""Recipes of the embedded text, models and drafters: each knows its key and makes its folder.

A key is a hash, in 16 hexadecimal digits, of everything that a result depends on: the recipe's
fields, its version included, the source text, the versions of the libraries, and the recipes that
it builds on. Naming a folder does not import torch and makes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recipes.embedded.corpus import text_key
from recipes.training.recipe import Eagle3Recipe, EagleRecipe
from resispec.embedded import pairs
from resispec.kept import Kept, make_key


@dataclass(frozen=True)
class Sizes:
    """The sizes of a Llama.

    Embeddings are tied: at this size a second matrix would be half of the model.

    Heads have 32 dimensions in every model that is trained here, so that their rotary frequencies
    are among those of the heads of 128 dimensions that large models have.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True


@dataclass(frozen=True)
class TextRecipe(Kept):
    """Settings by which text becomes a tokenizer, training streams and prompts.

    max_chars, max_files: as for `build_corpus`. num_prompts, min_prompts: the most and the fewest
    held-out documents that are kept for each data set. min_prompt_tokens: the fewest tokens of such
    a document. version: as in an `EagleRecipe`.
    """

    maker = "recipes.embedded.text:make_text"

    vocab_size: int = 2048
    max_chars: int = 2_500_000
    max_files: int | None = None
    num_prompts: int = 256
    min_prompts: int = 200
    min_prompt_tokens: int = 96
    version: int = field(default=1, init=False)

    def key(self) -> str:
        """See `Kept.key`."""
        return text_key(self)


TEXT_RECIPE = TextRecipe()
"""The recipe of the text that everyone gets."""


@dataclass(frozen=True)
class ModelRecipe(Kept):
    """Settings by which a model is trained: a target on text, a draft on the laws of its teacher.

    teacher: the target that a draft imitates; None for a target. mixture: the share of windows from
    each data set, in the order of `NAMES`. window: the number of tokens in a window. batch_size:
    the number of windows in a step. shards: the number of parts of a batch, which run in parallel
    with one thread each. version: as in an `EagleRecipe`.
    """

    maker, sources = "recipes.embedded.train:train_model", ("text",)

    sizes: Sizes
    learning_rate: float
    teacher: ModelRecipe | None = None
    text: TextRecipe = TEXT_RECIPE
    seed: int = 0
    steps: int = 450
    batch_size: int = 8
    shards: int = 2
    window: int = 256
    warmup_steps: int = 25
    weight_decay: float = 0.05
    mixture: tuple[float, float, float] = (0.2, 0.4, 0.4)
    version: int = field(default=1, init=False)


@dataclass(frozen=True)
class DrafterRecipe(Kept):
    """An embedded target, and the settings by which its EAGLE or EAGLE-3 drafter is trained."""

    maker = "recipes.embedded.train:train_drafter"

    target: ModelRecipe
    training: EagleRecipe | Eagle3Recipe

    def key(self) -> str:
        """See `Kept.key`."""
        return make_key(self.training, {"target": self.target.key().encode()})


TARGETS = {
    "2m": ModelRecipe(Sizes(192, 512, 4, 6, 3), learning_rate=6e-3),
    "800k": ModelRecipe(Sizes(128, 352, 3, 4, 2), learning_rate=6e-3),
}
"""Targets by name, which tells their number of parameters."""
DRAFTS = {
    "420k": Sizes(96, 256, 2, 3, 3),
    "180k": Sizes(64, 160, 1, 2, 2),
    "80k": Sizes(32, 96, 1, 1, 1),
}
"""Drafts by name, from the most capable to the least; each can be taught by any target."""
# The published losses; drafters so small learn at a higher rate in fewer steps.
EAGLE_RECIPE = EagleRecipe(steps=400, batch_size=8, learning_rate=3e-3, warmup_steps=25)
# Half of the embedded vocabulary is nine tenths of the embedded text.
EAGLE3_RECIPE = Eagle3Recipe(
    num_draftable=1024, depth=2, steps=400, batch_size=8, learning_rate=5e-3, warmup_steps=25
)


PARTS: Mapping[str, Kept] = {
    pairs.TEXTS: TEXT_RECIPE,
    **{
        name: recipe
        for target, drafts in pairs.DRAFTS.items()
        for draft in drafts
        for name, recipe in zip(
            pairs.model_names(target, draft),
            (
                TARGETS[target],
                ModelRecipe(DRAFTS[draft], learning_rate=1e-2, teacher=TARGETS[target]),
            ),
            strict=True,
        )
    },
    **{
        name: DrafterRecipe(TARGETS[target], EAGLE_RECIPE if count is None else EAGLE3_RECIPE)
        for (target, count), name in pairs.EAGLES.items()
    },
}
"""What comes with the package: the folder -> its recipe."""
