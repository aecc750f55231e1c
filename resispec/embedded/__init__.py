"""Small real models and three data sets that come with the package.

They are for real decoding, with a real gap between target and draft, on a machine without network
or accelerator. Their numbers say nothing about large models. They were trained on text that every
Python installation has; `recipes/embedded` in the repository makes them again. Text, targets,
drafts and EAGLE drafters have a folder each, and a key, a hash of what decided its content.
"""

from resispec.embedded.pairs import (
    DRAFTS,
    EAGLES,
    NAMES,
    EmbeddedDataset,
    eagle_fingerprint,
    inflated_fingerprint,
    load_eagle_pair,
    load_inflated_pair,
    load_pair,
    pair_fingerprint,
    text_fingerprint,
)

__all__ = [
    "DRAFTS",
    "EAGLES",
    "NAMES",
    "EmbeddedDataset",
    "eagle_fingerprint",
    "inflated_fingerprint",
    "load_eagle_pair",
    "load_inflated_pair",
    "load_pair",
    "pair_fingerprint",
    "text_fingerprint",
]
