"""What decides the embedded models, apart from the source text and the versions of the libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from resispec.errors import InvalidInput
from resispec.training.recipe import Eagle3Recipe, EagleRecipe


@dataclass(frozen=True)
class Sizes:
    """The sizes of a Llama. Embeddings are tied: at this size a second matrix would be half of the model.

    Heads have 32 dimensions in every model that is trained here, so that their rotary frequencies are among
    those of the heads of 128 dimensions that large models have.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True


@dataclass(frozen=True)
class TextRecipe:
    """How text becomes a tokenizer, training streams and prompts.

    max_chars: training text of one data set at most. max_files: source files at most, for quick trials.
    num_prompts, min_prompts: held-out documents kept of a data set, at most and at least.
    min_prompt_tokens: tokens of each.
    """

    vocab_size: int = 2048
    max_chars: int = 2_500_000
    max_files: int | None = None
    num_prompts: int = 256
    min_prompts: int = 200
    min_prompt_tokens: int = 96


TEXT_RECIPE = TextRecipe()
"""Of the text that everyone gets."""


@dataclass(frozen=True)
class ModelRecipe:
    """How one model is trained: a target on the text, a draft on the laws of its teacher.

    teacher: the target that a draft imitates; none for a target.
    mixture: share of windows from each data set, in the order of `NAMES`. window: tokens of one.
    batch_size: windows of a step. shards: parts of a batch that run in parallel, one thread each.
    """

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


TARGETS = {
    "2m": ModelRecipe(Sizes(192, 512, 4, 6, 3), learning_rate=6e-3),
    "800k": ModelRecipe(Sizes(128, 352, 3, 4, 2), learning_rate=6e-3),
}
"""By name, which tells their number of parameters."""
DRAFTS = {
    "420k": Sizes(96, 256, 2, 3, 3),
    "180k": Sizes(64, 160, 1, 2, 2),
    "80k": Sizes(32, 96, 1, 1, 1),
}
"""By name, from the most capable to the least; each can be taught by any target."""
DRAFT_LEARNING_RATE = 1e-2


def target_recipe(name: str) -> ModelRecipe:
    """The recipe of a target of `TARGETS`. Raises InvalidInput for another name."""
    if name not in TARGETS:
        raise InvalidInput(f"unknown embedded target {name!r}; allowed: {', '.join(TARGETS)}")
    return TARGETS[name]


def draft_recipe(name: str, target: str) -> ModelRecipe:
    """The recipe of a draft of `DRAFTS` that imitates a target. Raises InvalidInput for another name."""
    if name not in DRAFTS:
        raise InvalidInput(f"unknown embedded draft {name!r}; allowed: {', '.join(DRAFTS)}")
    return ModelRecipe(DRAFTS[name], DRAFT_LEARNING_RATE, teacher=target_recipe(target))


# The published losses; drafters so small learn at a higher rate in fewer steps.
EAGLE_RECIPE = EagleRecipe(steps=400, batch_size=8, learning_rate=3e-3, warmup_steps=25)
# Half of the embedded vocabulary is nine tenths of the embedded text.
EAGLE3_RECIPE = Eagle3Recipe(
    num_draftable=1024, depth=2, steps=400, batch_size=8, learning_rate=5e-3, warmup_steps=25
)


def eagle_recipe(num_draftable: int | None = None) -> EagleRecipe | Eagle3Recipe:
    """The recipe of an EAGLE-3 drafter with a vocabulary of so many tokens; of an EAGLE drafter when None."""
    return EAGLE_RECIPE if num_draftable is None else replace(EAGLE3_RECIPE, num_draftable=num_draftable)
