"""SmolLM2-135M-Instruct, a published chat model that a Python package bundles, and its drafters.

convert: makes a folder that transformers reads of the bundled GGUF file. questions: the training
questions, and two data sets. answers: the target's answers to the training questions. train: the
training of drafters on these answers. recipe: recipes of everything that is kept in the cache.
pairs: the loaders.
"""

from recipes.smollm2.pairs import load_eagle_pair, load_pair, pair_fingerprint
from recipes.smollm2.questions import SmolLM2Dataset, questions_fingerprint

__all__ = [
    "SmolLM2Dataset",
    "load_eagle_pair",
    "load_pair",
    "pair_fingerprint",
    "questions_fingerprint",
]
