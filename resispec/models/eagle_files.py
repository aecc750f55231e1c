"""EAGLE drafters on disk, in the published layout.

config.json lies beside pytorch_model.bin or model.safetensors. EAGLE-1 and EAGLE-2 use the target's
head and final norm and do not store them. EAGLE-3, whose layer is called midlayer, has its own
head, norm and vocabulary: token i of the drafter is token i + d2t[i] of the target (`d2t` (D,)),
and `t2d` (V,) is True for the target's tokens that the drafter has. If both vocabularies have the
same size, `d2t` and `t2d` are not read, as in the authors' code. The embeddings may be stored.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig

from resispec import hub
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json, replacing, write_atomically
from resispec.loaders import of_eagle
from resispec.models.checkpoint import cause
from resispec.models.eagle import EagleModel, EagleModule, build_drafter
from resispec.models.eagle3 import NUM_TAPS, Eagle3Module, usual_taps
from resispec.models.grid import in_precision
from resispec.models.linear import quicken
from resispec.models.loading import as_pair, load_pair
from resispec.models.pair import Pair

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first one that exists is read
TAPS = "eagle_aux_hidden_state_layer_ids"
TARGET_SIZE = "target_hidden_size"
DRAFT_VOCAB = "draft_vocab_size"
_REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_FIELDS = (
    *_REQUIRED, "num_hidden_layers", "num_key_value_heads", "head_dim", "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings", "bos_token_id", "eos_token_id", "tie_word_embeddings",
)  # fmt: skip


@of_eagle
def load_eagle_pair(
    target: str,
    draft: str | None,
    device: str = "cpu",
    dtype: str = "float32",
    target_revision: str | None = None,
    draft_revision: str | None = None,
) -> Pair:
    """Load a target and its EAGLE drafter from hub names or folders.

    device, dtype: as for `load_pair`, but one dtype for both; a drafter has no grids, and is in
    bfloat16 beside a target of few bits. Raises InvalidInput as `load_pair`, and when the drafter's
    files are faulty or were made for another target.
    """
    if "/" in dtype:
        raise InvalidInput(f"dtype is {dtype}; allowed: one, which an EAGLE drafter's target has")
    pair = load_pair(target, None, device, dtype, target_revision)
    if draft is None:
        return pair
    return as_pair(pair.target, load_eagle(draft, pair.target, draft_revision), pair.tokenizer)


def load_eagle(name: str, target: Any, revision: str | None = None) -> EagleModel:
    """An EAGLE drafter for a target, a `TransformersModel`, on its device and in its precision.

    If the checkpoint has no embeddings, the target's are used. Raises InvalidInput, which names the
    file, the key or the size at fault.
    """
    folder = hub.model_folder(name, revision)
    content, weights = read_json(folder / CONFIG), _read_weights(folder)
    drafter = f"EAGLE drafter {name}"
    sizes = _sizes(drafter, content, target.config)
    if (layers := len({key.split(".")[1] for key in weights if key.startswith("layers.")})) > 1:
        raise InvalidInput(f"{drafter} has {layers} layers in its weights; an EAGLE drafter has 1")
    # Old checkpoints store rotary frequencies, which follow from the configuration.
    weights = {
        name: weight for name, weight in weights.items() if not name.endswith("rotary_emb.inv_freq")
    }
    embedding = target.module.get_input_embeddings().weight.detach()
    if embedding.shape[1] == sizes["hidden_size"]:
        weights.setdefault("embed_tokens.weight", embedding)
    try:
        config = LlamaConfig(**sizes)
        if any(key.startswith("midlayer.") for key in weights):
            module: Any = _eagle3(drafter, content, config, weights, target.config)
        else:
            module = build_drafter(EagleModule, config, "fc.bias" in weights)
    except InvalidInput:
        raise
    except (StrictDataclassError, ValueError, TypeError, KeyError) as error:
        raise InvalidInput(
            f"{folder / CONFIG} describes no Llama layer: {first_line(error)}"
        ) from error
    try:
        module.load_state_dict(weights)
    except (
        RuntimeError
    ) as error:  # its lines name every key that is missing, unknown or of another size
        raise InvalidInput(f"{drafter}: {' '.join(str(error).split())[:400]}") from error
    in_precision(module, target.module.dtype)
    module = module.to(target.device)
    quicken(module)
    return EagleModel(module, hub.commit_of(folder))


def save_eagle(module: EagleModule | Eagle3Module, folder: Path) -> None:
    """Write a folder in the published layout, embeddings included; each file is whole or absent."""
    config: Any = module.config
    rope = dict(config.rope_parameters)
    theta = rope.pop("rope_theta")
    content = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{name: getattr(config, name) for name in _FIELDS if hasattr(config, name)},
        "rope_theta": theta,
        "rope_scaling": None if rope["rope_type"] == "default" else rope,
    }
    if isinstance(module, Eagle3Module):
        content |= {
            "architectures": ["LlamaForCausalLMEagle3"],
            DRAFT_VOCAB: module.num_draftable,
            TARGET_SIZE: module.fc.in_features // NUM_TAPS,
            TAPS: list(module.taps),
        }
    else:
        content["bias"] = module.fc.bias is not None
    content["torch_dtype"] = str(module.fc.weight.dtype).removeprefix("torch.")
    weights = {name: weight.contiguous() for name, weight in module.state_dict().items()}
    with replacing(folder / WEIGHTS[0]) as partial:
        save_file(weights, partial)
    write_atomically(folder / CONFIG, json.dumps(content, indent=2) + "\n")


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint, on the CPU; a pickle is read as tensors only."""
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise InvalidInput(f"EAGLE folder {folder} has no weights; expected {' or '.join(WEIGHTS)}")
    is_pickle = path.suffix == ".bin"
    try:
        weights = (
            torch.load(path, map_location="cpu", weights_only=True)
            if is_pickle
            else load_file(path)
        )
    except Exception as error:  # a damaged file can raise anything
        raise InvalidInput(f"{path} cannot be read: {cause(error)}") from error
    if not isinstance(weights, dict) or not all(
        isinstance(value, Tensor) for value in weights.values()
    ):
        raise InvalidInput(f"{path} is no EAGLE checkpoint; expected tensors by name")
    return weights


def _sizes(drafter: str, content: Mapping[str, Any], target: Any) -> dict[str, Any]:
    """The fields of a `LlamaConfig` that describe a drafter, from the content of its config.json.

    target: the target's configuration. The number of layers is that of the weights; published files
    may give the target's. Raises InvalidInput for a required field that is absent, and for a hidden
    size or a vocabulary size that is not the target's.
    """
    absent = [name for name in _REQUIRED if not isinstance(content.get(name), int)]
    if absent:
        raise InvalidInput(
            f"{drafter}: config.json lacks {', '.join(absent)}; allowed: whole numbers"
        )
    size_key = TARGET_SIZE if content.get(TARGET_SIZE) else "hidden_size"
    for key, size in ((size_key, target.hidden_size), ("vocab_size", target.vocab_size)):
        if content[key] != size:
            raise InvalidInput(f"{drafter} has {key} {content[key]}; its target has {size}")
    names = (*_FIELDS, "rope_theta", "rope_scaling", "rope_parameters")
    return {name: content[name] for name in names if name in content} | {"num_hidden_layers": 1}


def _eagle3(
    drafter: str,
    content: Mapping[str, Any],
    config: LlamaConfig,
    weights: dict[str, Tensor],
    target: Any,
) -> Eagle3Module:
    """An EAGLE-3 checkpoint's untrained network, whose `d2t` and `t2d` replace those in `weights`.

    content: the checkpoint's config.json. config: the drafter's. target: the target's
    configuration. Raises InvalidInput, which names the drafter and what is wrong.
    """
    for key in ("norm_before_residual", "norm_before_fc", "fc_norm"):  # true in later layouts
        if content.get(key):
            raise InvalidInput(f"{drafter} has {key} {content[key]!r}; allowed: false")
    token_ids = _token_ids(drafter, content, weights)
    taps = _taps(drafter, content, target.num_hidden_layers)
    module = build_drafter(Eagle3Module, config, target.hidden_size, taps, token_ids)
    mask = weights.get("t2d", module.t2d)
    if len(token_ids) < content["vocab_size"] and not torch.equal(mask.bool(), module.t2d):
        raise InvalidInput(f"{drafter}: t2d is not the mask of the tokens that d2t reaches")
    weights |= {"d2t": module.d2t, "t2d": module.t2d}
    return module


def _token_ids(drafter: str, content: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Tensor:
    """The target's ids (D,) of the drafter's tokens."""
    vocab = content["vocab_size"]
    count = vocab if content.get(DRAFT_VOCAB) is None else content[DRAFT_VOCAB]
    if type(count) is not int or not 1 <= count <= vocab:
        raise InvalidInput(
            f"{drafter} has {DRAFT_VOCAB} {count!r}; allowed: whole numbers from 1 to {vocab}"
        )
    ids = torch.arange(count)
    if count == vocab:
        return ids
    offsets = weights.get("d2t", torch.empty(0))
    if offsets.shape != ids.shape or offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise InvalidInput(
            f"{drafter}: d2t is {tuple(offsets.shape)} {offsets.dtype}; allowed: ({count},) whole "
            "numbers"
        )
    ids = ids + offsets.long()
    if ids.min() < 0 or ids.max() >= vocab or len(ids.unique()) < count:
        raise InvalidInput(
            f"{drafter}: d2t maps its tokens to {int(ids.min())} to {int(ids.max())}, "
            f"{len(ids.unique())} of {count} different; allowed: different ones from 0 to "
            f"{vocab - 1}"
        )
    return ids


def _taps(drafter: str, content: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The target's layers whose inputs are features.

    A list at the top level of the configuration numbers layers by their inputs (vLLM), a list
    within `eagle_config` by their outputs (SGLang).
    """
    nested = (content.get("eagle_config") or {}).get(TAPS)
    layers, offset = content.get(TAPS), 0
    if layers is None:
        layers, offset = (list(usual_taps(num_layers)), 0) if nested is None else (nested, 1)
    allowed = range(-offset, num_layers - offset)
    is_list = isinstance(layers, list) and len(layers) == NUM_TAPS
    if not is_list or not all(type(layer) is int and layer in allowed for layer in layers):
        raise InvalidInput(
            f"{drafter} reads layers {layers!r} of a target with {num_layers}; "
            f"allowed: {NUM_TAPS} numbers from {allowed[0]} to {allowed[-1]}"
        )
    return tuple(layer + offset for layer in layers)
