"""Small real models and three data sets, made at first use from text
that every Python installation has.

They are for real decoding, with a real gap between target and draft, on a machine without network
or accelerator. Their numbers say nothing about large models. The first use trains a model, which
takes minutes; every later use opens the cache. Text, targets, drafts and EAGLE drafters are cached
apart: everything that decides a folder's content decides its name, so training one model anew
leaves the other folders as they are.
"""

from resispec.embedded.corpus import NAMES
from resispec.embedded.pairs import EmbeddedDataset, load_eagle_pair, load_inflated_pair, load_pair
from resispec.embedded.recipe import DRAFTS, TARGETS

__all__ = [
    "DRAFTS", "NAMES", "TARGETS", "EmbeddedDataset", "load_eagle_pair", "load_inflated_pair",
    "load_pair",
]  # fmt: skip
