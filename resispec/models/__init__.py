"""Language models behind small interfaces.

Only this package and `resispec.transformers` import transformers.

A `Model` makes `Session`s. A session holds one sequence: it forwards the tokens of a step under an
explicit mask, so a tree is verified in one call, and keeps the rows of the path that was accepted.
Features are the hidden states after the final norm. `head` turns them into logits, so a forward
does not compute logits that nobody reads. An `EagleModel` drafts from its target's features; with
an `Eagle3Module` these features also hold the inputs of three of the target's layers.
"""

from resispec.models.base import Model, Session, features_of, keeping
from resispec.models.causal import TransformersModel, build_llama
from resispec.models.checkpoint import check_device
from resispec.models.eagle import EagleModel, EagleModule, EagleSession, build_drafter
from resispec.models.eagle3 import Eagle3Module, usual_taps
from resispec.models.eagle_files import load_eagle_pair, save_eagle
from resispec.models.loading import load_pair, save_model
from resispec.models.pair import Pair
from resispec.models.tokenizer import TransformersTokenizer
from resispec.sampling import Warp

__all__ = [
    "Eagle3Module", "EagleModel", "EagleModule", "EagleSession", "Model", "Pair", "Session",
    "TransformersModel", "TransformersTokenizer", "Warp", "build_drafter", "build_llama",
    "check_device", "features_of", "keeping", "load_eagle_pair", "load_pair", "save_eagle",
    "save_model",
    "usual_taps",
]  # fmt: skip
