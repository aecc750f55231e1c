"""SmolLM2-135M-Instruct, a published chat model that a package of the Python index bundles, and its drafters.

convert: the bundled GGUF as a folder that transformers reads. questions: what training asks, and two data
sets. answers: the target's, to what training asks. train: the drafters that learn from them. recipe: all that
is kept in the cache, each thing by the key of what decides it. pairs: the loaders.
"""

from resispec.smollm2.pairs import load_eagle_pair, load_pair, pair_fingerprint
from resispec.smollm2.questions import SmolLM2Dataset

__all__ = ["SmolLM2Dataset", "load_eagle_pair", "load_pair", "pair_fingerprint"]
