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

from resispec.errors import InvalidInput, first_line
from resispec.models import hub

_LONGEST_CAUSE = 240
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def read_checkpoint(name: str, revision: str | None, dtype: torch.dtype, device: str) -> tuple[Any, Any]:
    """The causal language model of transformers and the tokenizer that a folder or a hub name holds.

    Raises InvalidInput, one line with the cause, for whatever is wrong with them.
    """
    source, options = _located(name, revision)
    with quiet(), _named(f"model {name}"):
        _check_config(source, options)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation="sdpa",
            weights_only=True,
            ignore_mismatched_sizes=True,  # so that they are reported, and refused below
            output_loading_info=True,
            **options,
        )
        _check_fit(*loaded)
        module = loaded[0].to(device)
    return module, read_tokenizer(name, revision)


def read_tokenizer(name: str, revision: str | None = None) -> Any:
    """The tokenizer of transformers that a folder or a hub name holds. Raises as `read_checkpoint`."""
    source, options = _located(name, revision)
    with quiet(), _named(f"tokenizer of model {name}"):
        if "auto_map" in get_tokenizer_config(source, **options):
            raise InvalidInput(
                "it needs code of its own (auto_map in tokenizer_config.json), which is never run"
            )
        if Path(source).is_dir() and not any(Path(source, file).is_file() for file in _TOKENIZER_FILES):
            raise InvalidInput(f"there is none; a folder needs one of {', '.join(_TOKENIZER_FILES)}")
        return AutoTokenizer.from_pretrained(source, **options)


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


def _located(name: str, revision: str | None) -> tuple[str, dict[str, Any]]:
    """What transformers is to open, and with which options."""
    folder = Path(name).expanduser()
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    if folder.is_dir():
        return str(folder), options
    if hub.looks_like_path(name):
        raise InvalidInput(
            f"model folder {name} does not exist; "
            "give a folder with config.json or a hub name like owner/model"
        )
    return name, options | {"local_files_only": hub.is_offline("model", name, revision)}


def _check_config(source: str, options: dict[str, Any]) -> None:
    """Raise InvalidInput unless config.json names a causal language model of transformers itself."""
    content, _ = PretrainedConfig.get_config_dict(source, **options)
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind is None:
        raise InvalidInput("there is no config.json that gives a model_type")
    if "auto_map" in content:
        raise InvalidInput("it needs code of its own (auto_map in config.json), which is never run")
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        known = f"the causal language models of transformers {transformers.__version__}, like llama"
        raise InvalidInput(f"config.json has model_type {kind!r}; allowed: {known}")


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
