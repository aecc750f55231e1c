"""Pairs of models: read from folders or the hub, or made of what a program has at hand; saving."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from resispec.errors import InvalidInput
from resispec.models.causal import TransformersModel
from resispec.models.checkpoint import check_device, find_dtype, found_device, read_checkpoint
from resispec.models.pair import Pair
from resispec.models.tokenizer import NoTokenizer, TransformersTokenizer
from resispec.models.vocabulary import sharing

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

transformers_logging.disable_progress_bar()  # a run shows one bar, its own

LOADED = {"cpu": "float32", "cuda": "bfloat16"}
"""The precision in which `as_pair` loads two names, by the type of the device."""


def load_pair(
    target: str,
    draft: str | None,
    device: str = "cpu",
    dtype: str = "float32",
    target_revision: str | None = None,
    draft_revision: str | None = None,
) -> Pair:
    """Load a target and its draft from hub names or folders.

    device: a torch device. dtype: one of float32, bfloat16, float16.
    Raises InvalidInput when a model cannot be found, the device or dtype is unknown, or the tokenizers
    differ.
    """
    check_device(device)
    precision = find_dtype(dtype)
    module, tokenizer = read_checkpoint(target, target_revision, precision, device)
    target_model, shared_tokenizer = TransformersModel(module), TransformersTokenizer(tokenizer)
    if draft is None:
        return Pair(target_model, None, shared_tokenizer)
    module, draft_tokenizer = read_checkpoint(draft, draft_revision, precision, device)
    names, tokenizers = (f"target {target}", f"draft {draft}"), (tokenizer, draft_tokenizer)
    draft_model = sharing(target_model, TransformersModel(module), names, tokenizers)
    return Pair(target_model, draft_model, shared_tokenizer)


def as_pair(target: Any, draft: Any, tokenizer: Any = None) -> Pair:
    """A pair of a target and a draft, each a causal language model of transformers, a `Model` or a name.

    Names are of folders or of the hub, as for `load_pair`. Two names bring their tokenizer and are loaded on
    CUDA where there is a device, in bfloat16, otherwise on the CPU in float32; a name beside a model is
    loaded as that one is. Modules are set to evaluation. tokenizer: of transformers, or a `Tokenizer`.
    Vocabularies may differ by padding, see `sharing`.
    Raises InvalidInput for anything else, for models on different devices, and as `load_pair` and `Pair`.
    """
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        tokenizer = TransformersTokenizer(tokenizer)
    if isinstance(target, str | Path) and isinstance(draft, str | Path):
        device = found_device("auto")
        pair = load_pair(str(target), str(draft), device, LOADED[device])
        return pair if tokenizer is None else replace(pair, tokenizer=tokenizer)
    models = _as_model("target", target, draft), _as_model("draft", draft, target)
    devices = [model.device for model in models]
    if devices[0] != devices[1]:
        raise InvalidInput(f"target on {devices[0]} and draft on {devices[1]}; allowed: one device for both")
    if all(isinstance(model, TransformersModel) for model in models):
        models = models[0], sharing(*models, ("target", "draft"))
    return Pair(*models, NoTokenizer() if tokenizer is None else tokenizer)


def _as_model(role: str, model: Any, beside: Any) -> Any:
    """One model of a pair; a name is loaded as the model beside it is."""
    if isinstance(model, str | Path):
        module = getattr(beside, "module", beside)
        if not hasattr(module, "dtype") or not hasattr(module, "device"):
            raise InvalidInput(
                f"{role} {model}: the other model is {type(beside).__name__}, no module or name"
            )
        model = read_checkpoint(str(model), None, module.dtype, str(module.device))[0]
    if isinstance(model, PreTrainedModel) and not model.config.is_encoder_decoder:
        return TransformersModel(model)
    if not hasattr(model, "session") or not hasattr(model, "vocab_size"):
        raise InvalidInput(
            f"{role} is {type(model).__name__}; allowed: a causal language model of transformers that is no "
            "encoder-decoder, a model of resispec.models, or the name of a folder or on the hub"
        )
    return model


def save_model(model: Any, tokenizer: FastTokenizer, eos_token: str, folder: Path) -> None:
    """Write a model folder that `load_pair` and every other user of transformers can open."""
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos_token).save_pretrained(folder)
