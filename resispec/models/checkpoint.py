"""Reading of a model and its tokenizer from a folder or the hub, in transformers' layout.

Weights are read as tensors and nothing else: code that a folder brings along, in a pickle or as
`auto_map`, is never run, and the user is never asked to run it. A model whose configuration does
not fit its weights is refused, whereas transformers alone would fill the gaps with random numbers,
and leave out what it has no place for.
"""

import hashlib
import logging
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_protobuf_available, is_sentencepiece_available

from resispec import hub
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json
from resispec.kept import entry
from resispec.models.grid import BITS, put_on_grids
from resispec.models.lean import is_plain
from resispec.models.linear import quicken

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PRECISIONS = (*DTYPES, *BITS)
"""Precisions of a model that is loaded: dtypes, and bits of weights on grids."""

_QUANTISED = "its weights are quantised; allowed: weights in float32, bfloat16 or float16"
_REFUSED = {
    "auto_map": "it needs code of its own (auto_map in config.json), which is never run",
    "is_encoder_decoder": "it is an encoder-decoder; allowed: causal language models, like llama",
    "quantization_config": _QUANTISED,
    "compression_config": _QUANTISED,
}
"""Keys of config.json that make a model refused: transformers would ask the user or misread it."""
_REFUSED_FILES = {
    "hf_quant_config.json": _QUANTISED,
    "adapter_config.json": "it has an adapter (adapter_config.json), which is not read; merge it "
    "into the weights, or take its files away",
}
"""Files whose settings transformers does not apply, or only with libraries that may be missing."""
_CONSTANTS = re.compile(
    r"inv_freq$|\.(cos|sin)_cached$|\.(attn|attention)\.(masked_)?bias$|\.causal_mask$"
    r"|position_ids$|\.embed_positions\.weights$|\bdecoder\.version$"
)
"""Names of rotary frequencies, masks and positions in old checkpoints.

They follow from the configuration. Transformers leaves them out, and for some kinds of models says
so as of weights.
"""
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_PROBE = "Tokens: 12 of them\n\tand  others, caf\u00e9\n\n1. In 2023 it's eBay's\n    0.5"
_OLD_PATTERN = r"\\p{N}{1,3}"  # numbers by threes, as JSON writes it
_TOKENIZER = "tokenizer.json"
_TOKENIZER_FILES = (_TOKENIZER, "tokenizer.model", "vocab.json", "vocab.txt")


def read_checkpoint(name: str, revision: str | None, dtype: str, device: str) -> tuple[Any, Any]:
    """The transformers causal language model and the tokenizer in a folder or under a hub name.

    dtype: of `PRECISIONS`; int8 and int4 are for a CPU, see `put_on_grids`. The model's
    configuration records the name and, for a model from the hub, the commit. Raises InvalidInput,
    with the cause in one line, for anything that is wrong with them.
    """
    check_dtype(dtype, device)
    folder = hub.model_folder(name, revision)
    with _reading(f"model {name}"):
        _check_files(folder)
        content = PretrainedConfig.get_config_dict(folder, **_LOCAL)[0]
        for key, problem in _REFUSED.items():
            if content.get(key):
                raise InvalidInput(problem)
        result: Any = _auto_class(content).from_pretrained(
            folder,
            dtype=DTYPES.get(dtype, torch.float32),
            # sdpa, or eager where a model lacks it, whatever config.json names
            attn_implementation="eager" if _has_softcap(content) else None,
            weights_only=True,
            ignore_mismatched_sizes=True,  # so that they are reported, and refused below
            output_loading_info=True,
            **_LOCAL,
        )
        _check_fit(*result)
        module = result[0].to(device)
        config = module.config.get_text_config()
        if config.model_type == "llama":  # a Mistral's window: read by no layer, but by the cache
            vars(config).pop("sliding_window", None)
        if dtype in BITS:
            module = put_on_grids(module, dtype)
        if not is_plain(module):  # a `LeanBody` chooses for its own matrices
            quicken(module)
    module.config._name_or_path, module.config._commit_hash = name, hub.commit_of(folder)
    return module, _tokenizer_in(folder, name)


def _auto_class(content: Mapping[str, Any]) -> Any:
    """The class of transformers that loads a model, from the content of its config.json.

    Models of text and images, like Mistral Small 3.1, may have no class for text alone.
    """
    kind = content.get("model_type")
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return AutoModelForCausalLM
    if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return AutoModelForImageTextToText
    return AutoModelForCausalLM  # which says that it knows no such model


def _has_softcap(content: Mapping[str, Any]) -> bool:
    """Whether attention has a soft cap, which the sdpa of some versions leaves out silently."""
    texts = (content, content.get("text_config") or {})
    return any(text.get("attn_logit_softcapping") for text in texts)


def read_tokenizer(name: str, revision: str | None = None) -> Any:
    """The transformers tokenizer in a folder or under a hub name. Raises as `read_checkpoint`."""
    return _tokenizer_in(hub.model_folder(name, revision), name)


def end_token_ids(module: Any) -> tuple[int, ...]:
    """The tokens that end a sequence, from generation_config.json or else config.json; () if none.

    There may be several: chat models end a turn with another token than a document.
    """
    for config in (module.generation_config, module.config.get_text_config()):
        if (ids := config.eos_token_id) is not None:
            ids = ids.tolist() if isinstance(ids, torch.Tensor) else ids
            return (ids,) if isinstance(ids, int) else tuple(ids)
    return ()


def check_device(device: str) -> None:
    """Raise InvalidInput when `device` names no device of this machine."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        raise InvalidInput(
            f"device {device!r} cannot be used; this machine has {', '.join(devices)}"
        ) from error


def found_device(name: str) -> str:
    """The name of a torch device; "auto" means "cuda" if there is a CUDA device, else "cpu"."""
    return name if name != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")


def dtypes_of(text: str) -> tuple[str, str]:
    """The precisions of a target and of its draft, from text like "int8" or "float32/int8".

    Raises InvalidInput for more than two, and for a name that is not of `PRECISIONS`.
    """
    target, *drafts = text.split("/")
    if len(drafts) > 1:
        raise InvalidInput(
            f"dtype is {text!r}; allowed: one precision, or a target's and a draft's, like "
            "float32/int8"
        )
    for name in (target, *drafts):
        entry("dtype", name, dict.fromkeys(PRECISIONS))
    return target, (drafts or [target])[0]


def check_dtype(name: str, device: str) -> None:
    """Raise InvalidInput for a name that is not of `PRECISIONS`, or not for this device."""
    entry("dtype", name, dict.fromkeys(PRECISIONS))
    if name in BITS and torch.device(device).type != "cpu":
        raise InvalidInput(f"dtype {name} is for the device cpu; found {device}")


def find_dtype(name: str) -> torch.dtype:
    """One of `DTYPES` by its name. Raises InvalidInput for an unknown name."""
    return entry("dtype", name, DTYPES)


def cause(error: Exception) -> str:
    """The reason why reading a checkpoint failed, in one line."""
    if isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are a damaged pickle, or one that holds more than tensors; none of "
            "it was run"
        )
    speaks = isinstance(error, OSError | ValueError | RuntimeError)
    return (first_line(error) if speaks else f"{type(error).__name__}: {first_line(error)}")[:240]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from printing tables of problems that an error here states in one line."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


@contextmanager
def _reading(source: str) -> Iterator[None]:
    """Turn any error into an InvalidInput that says in a line what could not be loaded, and why."""
    try:
        with quiet():
            yield
    except Exception as error:  # a damaged folder can make transformers raise anything
        raise InvalidInput(f"{source} cannot be loaded: {cause(error)}") from error


def _check_files(folder: Path) -> None:
    """Raise InvalidInput when a folder has files that change a model's weights and are not read.

    Warns of a pickle beside other weights. Nothing is said of weights in several files if they are
    a copy of the hub's, where these hold the same.
    """
    for file, problem in _REFUSED_FILES.items():
        if (folder / file).is_file():
            raise InvalidInput(problem)
    if hub.commit_of(folder):
        return
    found = []
    for index in hub.INDICES.values():
        single = index.removesuffix(".index.json")
        both = [file for file in (single, index) if (folder / file).is_file()]
        shards = set(read_json(folder / index)["weight_map"].values()) if both[1:] else set()
        if others := sorted(file for file in shards - {single} if (folder / file).is_file()):
            raise InvalidInput(
                f"it has weights in {single}, and by {index} in {others[0]}; allowed: one of both"
            )
        found += both[:1]
    if found[1:]:
        warnings.warn(f"{folder} has {' and '.join(found)}; {found[0]} is read", stacklevel=1)


def _check_fit(module: Any, report: Mapping[str, Any]) -> None:
    """Raise InvalidInput when a configuration does not fit the weights.

    This is so when a parameter has no fitting weight, when weights of the body or of the output
    layer were not used, or when weights differ that the configuration ties.
    """
    sizes = [
        f"{key} is {tuple(shape)} in the weights and {tuple(expected)} by config.json"
        for key, shape, expected in sorted(report["mismatched_keys"])
    ]
    # Weights of a body alone are named from there on.
    parts = {name for part in (module, module.base_model) for name, _ in part.named_children()}
    extras = [
        key
        for key in report["unexpected_keys"]
        if key.split(".")[0] in parts and not _CONSTANTS.search(key)
    ]
    untied = [
        key
        for key, source in module.get_expanded_tied_weights_keys(all_submodels=True).items()
        if module.get_parameter_or_buffer(key) is not module.get_parameter_or_buffer(source)
    ]
    lists = (
        ("", sizes[:1]),
        ("they lack ", report["missing_keys"]),
        ("they have besides ", extras),
        ("by tie_word_embeddings there is none of its own for ", untied),
    )
    for words, items in lists:
        if items:
            raise InvalidInput(
                f"config.json does not fit the weights: {words}{', '.join(sorted(items)[:3])}"
            )


def _tokenizer_in(folder: Path, name: str) -> Any:
    with _reading(f"tokenizer of model {name}"):
        if "auto_map" in get_tokenizer_config(folder, **_LOCAL):
            raise InvalidInput(
                "it needs code of its own (auto_map in tokenizer_config.json), which is never run"
            )
        files = [file for file in _TOKENIZER_FILES if (folder / file).is_file()]
        if not files:
            raise InvalidInput(
                f"there is none; a folder needs one of {', '.join(_TOKENIZER_FILES)}"
            )
        is_sentencepiece = files == ["tokenizer.model"]
        if is_sentencepiece and not (is_sentencepiece_available() and is_protobuf_available()):
            raise InvalidInput(
                "it has a tokenizer.model and no tokenizer.json, which two more libraries read: "
                "pip install sentencepiece protobuf"
            )
        tokenizer = AutoTokenizer.from_pretrained(folder, **_LOCAL)
        if is_sentencepiece:
            _check_conversion(tokenizer, folder / "tokenizer.model")
        if _TOKENIZER in files and not _follows_file(tokenizer, folder / _TOKENIZER):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, **_LOCAL)
        if _TOKENIZER in files and _has_old_pattern(tokenizer, folder / _TOKENIZER):
            warnings.warn(
                f"{name}: its tokenizer.json splits texts by a pattern that Mistral has mended "
                "since, so prompts may be other tokens than the model learnt; if it is Mistral's, "
                f"replace it: AutoTokenizer.from_pretrained({str(folder)!r}, "
                "fix_mistral_regex=True).save_pretrained(...)",
                stacklevel=1,
            )
        return tokenizer


def _follows_file(tokenizer: Any, file: Path) -> bool:
    """Whether a tokenizer of transformers is a general one that has the ids of its tokenizer.json.

    Transformers takes the class that tokenizer_config.json names. From version 5 on such a class
    may build the tokenizer anew, from the file's vocabulary and merges alone, and splits texts by a
    pattern of its own, where the file has another: SmolLM2's digits then are no single tokens. With
    mistral-common it is no tokenizer of this kind at all.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return False
    own = Tokenizer.from_file(str(file))
    own.no_padding()
    own.no_truncation()
    expected = own.encode(_PROBE, add_special_tokens=False).ids
    return bool(tokenizer.encode(_PROBE, add_special_tokens=False) == expected)


def _has_old_pattern(tokenizer: Any, file: Path) -> bool:
    """Whether a Mistral's tokenizer.json has the pattern of which transformers warns in a log.

    Transformers tells by the configuration alone, so the file is looked at, too.
    """
    is_told = getattr(tokenizer.backend_tokenizer, "fix_mistral_regex", None) is False
    return is_told and _OLD_PATTERN in file.read_text(encoding="utf-8")


def _check_conversion(tokenizer: Any, model: Path) -> None:
    """Raise InvalidInput unless transformers' conversion of a sentencepiece model gives its ids.

    Transformers takes the kind of conversion from tokenizer_config.json. Where that file does not
    name one, transformers leaves out the space before a text, and so gives other tokens for nearly
    every text.
    """
    from sentencepiece import SentencePieceProcessor

    ids = tokenizer.encode(_PROBE, add_special_tokens=False)
    expected = SentencePieceProcessor(model_file=str(model)).encode(_PROBE)
    if ids != expected:
        raise InvalidInput(
            f"transformers reads its tokenizer.model as {type(tokenizer).__name__}, which encodes "
            f"{_PROBE!r} as {ids[:3]}... where sentencepiece has {expected[:3]}...; give it a "
            "tokenizer.json, or a tokenizer_config.json with its tokenizer_class, like "
            "LlamaTokenizer"
        )


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A hash, in 16 hexadecimal digits, of the names, types, shapes and bytes of tensors."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
