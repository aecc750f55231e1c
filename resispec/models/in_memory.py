"""A pair of what a program has at hand: transformers modules, models of this library, or names to load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from resispec.errors import InvalidInput
from resispec.models.base import Tokenizer
from resispec.models.causal import TransformersModel, TransformersTokenizer, load_pair
from resispec.models.checkpoint import read_checkpoint
from resispec.models.pair import Pair
from resispec.models.scoring import found_device
from resispec.models.vocabulary import sharing

LOADED = {"cpu": "float32", "cuda": "bfloat16"}
"""In which precision two names are loaded, by the type of the device."""


class NoTokenizer:
    """In the place of a tokenizer that nobody gave."""

    eos_token_id: int | None = None

    def encode(self, text: str) -> list[int]:
        """Raises InvalidInput: a text needs a tokenizer."""
        raise InvalidInput("the prompt is text; give its tokenizer, as tokenizer=, or token ids")

    encode_chat = encode

    def decode(self, token_ids: list[int]) -> str:
        """Raises InvalidInput: a text needs a tokenizer."""
        raise InvalidInput("text needs a tokenizer; give one as tokenizer=")

    def beginning(self, text: str, count: int) -> str:
        """Raises InvalidInput: a text needs a tokenizer."""
        return self.decode(self.encode(text))


def as_pair(target: Any, draft: Any, tokenizer: Any = None) -> Pair:
    """A pair of a target and a draft, each a causal language model of transformers, a `Model` or a name.

    Names are of folders or of the hub, as for `load_pair`. Two names bring their tokenizer and are loaded on
    CUDA where there is a device, in bfloat16, otherwise on the CPU in float32; a name beside a model is
    loaded as that one is. Modules are set to evaluation. tokenizer: of transformers, or a `Tokenizer`.
    Vocabularies may differ by padding, see `sharing`.
    Raises InvalidInput for anything else, for models on different devices, and as `load_pair` and `Pair`.
    """
    if _is_name(target) and _is_name(draft):
        device = found_device("auto")
        pair = load_pair(str(target), str(draft), device, LOADED[device])
        return pair if tokenizer is None else replace(pair, tokenizer=_tokenizer(tokenizer))
    models = _model("target", target, draft), _model("draft", draft, target)
    devices = [model.device for model in models]
    if devices[0] != devices[1]:
        raise InvalidInput(f"target on {devices[0]} and draft on {devices[1]}; allowed: one device for both")
    if all(isinstance(model, TransformersModel) for model in models):
        models = models[0], sharing(*models, ("target", "draft"))
    return Pair(*models, NoTokenizer() if tokenizer is None else _tokenizer(tokenizer))


def global_generator(device: torch.device) -> Generator:
    """The generator that `torch.manual_seed` seeds for a device."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def _is_name(given: Any) -> bool:
    return isinstance(given, str | Path)


def _model(role: str, given: Any, other: Any) -> Any:
    """One model of a pair; the other one says how a name is loaded."""
    if _is_name(given):
        module = getattr(other, "module", other)
        if not hasattr(module, "dtype") or not hasattr(module, "device"):
            raise InvalidInput(
                f"{role} {given}: the other model is {type(other).__name__}, no module or name"
            )
        given = read_checkpoint(str(given), None, module.dtype, str(module.device))[0]
    if isinstance(given, PreTrainedModel):
        if given.config.is_encoder_decoder:
            raise InvalidInput(
                f"{role} {type(given).__name__} is an encoder-decoder; allowed: decoders alone"
            )
        return TransformersModel(given)
    if not hasattr(given, "session") or not hasattr(given, "vocab_size"):
        raise InvalidInput(
            f"{role} is {type(given).__name__}; allowed: a causal language model of transformers, a model of "
            "resispec.models, or the name of a folder or on the hub"
        )
    return given


def _tokenizer(given: Any) -> Tokenizer:
    return TransformersTokenizer(given) if isinstance(given, PreTrainedTokenizerBase) else given
