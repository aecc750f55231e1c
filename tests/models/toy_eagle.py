"""EAGLE drafters of toy size, and their training."""

import torch

from recipes.training import drafters
from recipes.training.drafters import Sequences
from recipes.training.recipe import DistillationRecipe, Eagle3Recipe, EagleRecipe
from resispec.drafters import DynamicTree, Eagle, Reading
from resispec.models import EagleModel, Pair
from resispec.trees import chain, root_only
from tests.toys import UNEVEN, ToyTokenizer, table_pair, tiny_eagle, tiny_llama

DYNAMIC = DynamicTree(12, 2, 3)
DRAFTERS = {
    "chain": Eagle(chain(3)),
    "fixed": Eagle(UNEVEN),
    "fixed softmax": Eagle(UNEVEN, Reading.SOFTMAX),
    "sampled": Eagle(UNEVEN, Reading.SAMPLED),
    "iid": Eagle(UNEVEN, Reading.IID),
    "recycled": Eagle(UNEVEN, Reading.IID, 0.5),
    "dynamic": Eagle(DYNAMIC),
    "dynamic softmax": Eagle(DYNAMIC, Reading.SOFTMAX),
    "root": Eagle(root_only()),
}


def bigram_pair(vocab=4):
    """A target whose features are its logits, and a drafter on those: every law is known."""
    target = table_pair(vocab=vocab, seed=5).target
    return Pair(target, EagleModel(tiny_eagle(vocab, hidden=vocab, seed=5)), ToyTokenizer())


EAGLE = EagleRecipe(steps=4, batch_size=4, learning_rate=2e-2, warmup_steps=1)

EAGLE3 = Eagle3Recipe(24, depth=2, steps=4, batch_size=4, learning_rate=2e-2, warmup_steps=1)

DISTILLED = DistillationRecipe(
    (0, 3), 24, steps=4, batch_size=4, learning_rate=2e-2, warmup_steps=1
)

TOKENS = [
    [start, *((start * 7 + 3 * step) % 64 for step in range(1, 14 + start % 3))]
    for start in range(30)
]


def training(recipe=EAGLE, seed=0, tokens=TOKENS, learnt_from=None):
    sequences = Sequences(tokens, torch.ones(len(tokens)), learnt_from)
    return drafters.new_training(tiny_llama(layers=4, seed=seed).module, sequences, recipe)
