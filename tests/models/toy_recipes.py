"""Recipes of embedded models of toy size."""

import dataclasses

from recipes.embedded.recipe import ModelRecipe, Sizes, TextRecipe

TEXT = TextRecipe(vocab_size=300, max_chars=30_000, max_files=12, num_prompts=5, min_prompts=1)
TARGET = ModelRecipe(
    Sizes(32, 64, 2, 2, 1), 6e-3, text=TEXT, steps=4, batch_size=4, window=16, warmup_steps=2
)

DRAFT = dataclasses.replace(
    TARGET, sizes=Sizes(16, 32, 1, 2, 1), learning_rate=1e-2, teacher=TARGET
)
