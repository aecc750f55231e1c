"""Reading a model and its tokenizer from a folder or the hub, in transformers' layout.

Weights are read as tensors and nothing else: code that a folder brings along, in a pickle or as `auto_map`,
is never run and never asked about. A model whose configuration does not fit its weights is refused, where
transformers alone would fill the gaps with random numbers.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_protobuf_available, is_sentencepiece_available

from resispec import hub
from resispec.errors import InvalidInput, first_line

_LONGEST_CAUSE = 240
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_PROBE = "Tokens: 12 of them\n\tand  others, caf\u00e9"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def read_checkpoint(name: str, revision: str | None, dtype: torch.dtype, device: str) -> tuple[Any, Any]:
    """The causal language model of transformers and the tokenizer that a folder or a hub name holds.

    The model's configuration says under which name and, of the hub, at which commit it was found.
    Raises InvalidInput, one line with the cause, for whatever is wrong with them.
    """
    folder = hub.model_folder(name, revision)
    with quiet(), _named(f"model {name}"):
        _check_config(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="sdpa",
            weights_only=True,
            ignore_mismatched_sizes=True,  # so that they are reported, and refused below
            output_loading_info=True,
            **_LOCAL,
        )
        _check_fit(*loaded)
        module = loaded[0].to(device)
    module.config._name_or_path, module.config._commit_hash = name, hub.commit_of(folder)
    return module, _tokenizer_in(folder, name)


def read_tokenizer(name: str, revision: str | None = None) -> Any:
    """The tokenizer of transformers that a folder or a hub name holds. Raises as `read_checkpoint`."""
    return _tokenizer_in(hub.model_folder(name, revision), name)


def _tokenizer_in(folder: Path, name: str) -> Any:
    with quiet(), _named(f"tokenizer of model {name}"):
        if "auto_map" in get_tokenizer_config(folder, **_LOCAL):
            raise InvalidInput(
                "it needs code of its own (auto_map in tokenizer_config.json), which is never run"
            )
        found = [file for file in _TOKENIZER_FILES if (folder / file).is_file()]
        if not found:
            raise InvalidInput(f"there is none; a folder needs one of {', '.join(_TOKENIZER_FILES)}")
        is_sentencepiece = found == ["tokenizer.model"]
        if is_sentencepiece and not (is_sentencepiece_available() and is_protobuf_available()):
            raise InvalidInput(
                "it has a tokenizer.model and no tokenizer.json, which two more libraries read: "
                "pip install sentencepiece protobuf"
            )
        tokenizer = AutoTokenizer.from_pretrained(folder, **_LOCAL)
        if is_sentencepiece:
            _check_conversion(tokenizer, folder / "tokenizer.model")
        return tokenizer


def _check_conversion(tokenizer: Any, model: Path) -> None:
    """Raise InvalidInput unless what transformers made of a sentencepiece model gives the model's own ids.

    Which conversion is the right one transformers takes from tokenizer_config.json; without a word there it
    leaves out the space before a text, and so gives other tokens for nearly every one.
    """
    from sentencepiece import SentencePieceProcessor

    found, own = (
        tokenizer.encode(_PROBE, add_special_tokens=False),
        SentencePieceProcessor(model_file=str(model)).encode(_PROBE),
    )
    if found != own:
        raise InvalidInput(
            f"transformers reads its tokenizer.model as {type(tokenizer).__name__}, which encodes {_PROBE!r} "
            f"as {found[:3]}... where sentencepiece has {own[:3]}...; give it a tokenizer.json, or a "
            "tokenizer_config.json with its tokenizer_class, like LlamaTokenizer"
        )


def end_token_ids(module: Any) -> tuple[int, ...]:
    """The tokens that end a sequence, by generation_config.json, or else by config.json; () if neither does.

    They may be several: chat models end a turn with another token than a document.
    """
    for config in (module.generation_config, module.config.get_text_config()):
        if config.eos_token_id is not None:
            named = config.eos_token_id
            return tuple(named) if isinstance(named, list) else (named,)
    return ()


def cause(error: Exception) -> str:
    """What made reading a checkpoint fail, in one line."""
    if isinstance(error, pickle.UnpicklingError):
        return "its weights are a damaged pickle, or one that holds more than tensors; none of it was run"
    speaks = isinstance(error, OSError | ValueError | RuntimeError)
    return (first_line(error) if speaks else f"{type(error).__name__}: {first_line(error)}")[:_LONGEST_CAUSE]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from printing tables about what is said in one line."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def _check_config(folder: Path) -> None:
    """Raise InvalidInput unless config.json names a causal language model of transformers itself."""
    content, _ = PretrainedConfig.get_config_dict(folder, **_LOCAL)
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind is None:
        raise InvalidInput("there is no config.json that gives a model_type")
    if "auto_map" in content:
        raise InvalidInput("it needs code of its own (auto_map in config.json), which is never run")
    if content.get("is_encoder_decoder"):
        raise InvalidInput(f"it is an encoder-decoder ({kind}); allowed: causal language models, like llama")
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        known = f"the causal language models of transformers {transformers.__version__}, like llama"
        raise InvalidInput(f"config.json has model_type {kind!r}; allowed: {known}")
    quantized = content.get("quantization_config") or content.get("compression_config")
    if quantized:
        method = quantized.get("quant_method", "unknown") if isinstance(quantized, dict) else quantized
        raise InvalidInput(
            f"its weights are quantised ({method}); allowed: weights in float32, bfloat16 or float16"
        )


def _check_fit(module: Any, report: Mapping[str, Any]) -> None:
    """Raise InvalidInput when transformers could not give every parameter its weight, or left a layer out."""
    layers = f"{module.base_model_prefix}.layers."
    left_out = [
        key for key in report["unexpected_keys"] if key.startswith(layers) and key.endswith(".weight")
    ]
    if report["mismatched_keys"]:
        key, found, expected = min(report["mismatched_keys"])
        sizes = f"{key} is {tuple(found)} in the weights and {tuple(expected)} by config.json"
        raise InvalidInput(f"config.json does not fit the weights: {sizes}")
    for what, keys in (("lack", report["missing_keys"]), ("have besides", left_out)):
        if keys:
            raise InvalidInput(
                f"config.json does not fit the weights: they {what} {', '.join(sorted(keys)[:3])}"
            )


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Say of every error what could not be loaded, and why."""
    try:
        yield
    except Exception as error:  # a damaged folder can make transformers raise anything
        raise InvalidInput(f"{what} cannot be loaded: {cause(error)}") from error
