"""EAGLE drafters on disk, in the published layout: config.json beside pytorch_model.bin or model.safetensors.

Of EAGLE-1 and EAGLE-2 the head and the final norm are the target's and are not stored; EAGLE-3 has its own.
The embeddings may be stored. Which of them a drafter is, and whether `fc` has a bias, follows from the keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from torch import Tensor

from resispec import hub
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json
from resispec.models.causal import load_pair
from resispec.models.checkpoint import cause
from resispec.models.eagle import EagleModel, EagleModule, build_eagle
from resispec.models.eagle3 import Eagle3Model, Eagle3Module
from resispec.models.eagle3_checkpoint import TARGET_SIZE, build_from, described, is_eagle3
from resispec.models.pair import Pair

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first that is there
EMBEDDING = "embed_tokens.weight"
BIAS = "fc.bias"
# Follows from the configuration; old checkpoints stored it.
_DERIVED = ("layers.0.self_attn.rotary_emb.inv_freq", "midlayer.self_attn.rotary_emb.inv_freq")
_REQUIRED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_FIELDS = (
    *_REQUIRED, "num_hidden_layers", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
    "max_position_embeddings", "bos_token_id", "eos_token_id", "tie_word_embeddings",
)  # fmt: skip
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")


def load_eagle_pair(
    target: str,
    draft: str | None,
    device: str = "cpu",
    dtype: str = "float32",
    target_revision: str | None = None,
    draft_revision: str | None = None,
) -> Pair:
    """Load a target and its EAGLE drafter from hub names or folders.

    device, dtype: as for `load_pair`. Raises InvalidInput as `load_pair`, or when the drafter's files are not
    what they should be or were made for another target.
    """
    pair = load_pair(target, None, device, dtype, target_revision)
    if draft is None:
        return pair
    model: Any = pair.target
    drafter = load_eagle(draft, model, draft_revision)
    if isinstance(drafter, Eagle3Model):
        model = model.tapping(drafter.taps)
    return Pair(model, drafter, pair.tokenizer)


def load_eagle(name: str, target: Any, revision: str | None = None) -> EagleModel:
    """An EAGLE drafter for a `TransformersModel`, on its device and in its precision.

    Where the checkpoint has no embeddings the target's are used. Raises InvalidInput naming the file, the key
    or the size at fault.
    """
    folder = hub.model_folder(name, revision)
    content, weights = read_json(folder / CONFIG), _read_weights(folder)
    sizes = _sizes(folder / CONFIG, content)
    _check_target(name, content, target)
    for key in _DERIVED:
        weights.pop(key, None)
    embedding = target.module.get_input_embeddings().weight.detach()
    if embedding.shape[1] == sizes["hidden_size"]:
        weights.setdefault(EMBEDDING, embedding)
    try:
        module: EagleModule | Eagle3Module = (
            build_from(name, content, sizes, weights, target)
            if is_eagle3(weights)
            else build_eagle(BIAS in weights, **sizes)
        )
    except InvalidInput:
        raise
    except (StrictDataclassError, ValueError, TypeError, KeyError) as error:
        raise InvalidInput(f"{folder / CONFIG} describes no Llama layer: {first_line(error)}") from error
    _check(name, weights, module.state_dict())
    module.load_state_dict(weights)
    for parameter in module.parameters():  # only these: rotary frequencies lose too much in half precision
        parameter.data = parameter.data.to(target.module.dtype)
    module, commit = module.to(target.device), hub.commit_of(folder)
    return Eagle3Model(module, commit) if isinstance(module, Eagle3Module) else EagleModel(module, commit)


def save_eagle(module: EagleModule | Eagle3Module, folder: Path) -> None:
    """Write a folder in the published layout, embeddings included."""
    folder.mkdir(parents=True, exist_ok=True)
    config: Any = module.config
    rope = dict(config.rope_parameters)
    theta = rope.pop("rope_theta")
    known = {name: getattr(config, name) for name in _FIELDS if hasattr(config, name)}
    content = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **known,
        "rope_theta": theta,
        "rope_scaling": None if rope["rope_type"] == "default" else rope,
        **(described(module) if isinstance(module, Eagle3Module) else {"bias": module.fc.bias is not None}),
        "torch_dtype": str(module.fc.weight.dtype).removeprefix("torch."),
    }
    (folder / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    save_file(
        {name: weight.contiguous() for name, weight in module.state_dict().items()}, folder / WEIGHTS[0]
    )


def _sizes(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `LlamaConfig` that describe a drafter, from the content of its config.json."""
    absent = [name for name in _REQUIRED if not isinstance(content.get(name), int)]
    if absent:
        raise InvalidInput(
            f"{path} lacks {', '.join(absent)}; an EAGLE drafter's configuration gives whole numbers for them"
        )
    if content.get("num_hidden_layers", 1) != 1:
        raise InvalidInput(
            f"{path} has num_hidden_layers {content['num_hidden_layers']!r}; an EAGLE drafter has 1"
        )
    return {name: content[name] for name in (*_FIELDS, *_ROPE) if name in content} | {"num_hidden_layers": 1}


def _check_target(name: str, content: Mapping[str, Any], target: Any) -> None:
    """Raise InvalidInput unless the sizes are those of the target."""
    of_features = TARGET_SIZE if content.get(TARGET_SIZE) else "hidden_size"
    for key, size in ((of_features, "hidden_size"), ("vocab_size", "vocab_size")):
        if content[key] != (expected := getattr(target.module.config, size)):
            raise InvalidInput(f"EAGLE drafter {name} has {key} {content[key]}; its target has {expected}")


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint, on the CPU; a pickle is read as tensors only."""
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise InvalidInput(f"EAGLE folder {folder} has no weights; expected {' or '.join(WEIGHTS)}")
    try:
        found = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # a damaged file can raise anything
        raise InvalidInput(f"{path} cannot be read: {cause(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InvalidInput(f"{path} is no EAGLE checkpoint; expected tensors by name")
    return dict(found)


def _check(name: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise InvalidInput unless the keys and shapes are those of the drafter."""
    for what, keys in (
        ("lacks", expected.keys() - found.keys()),
        ("has unknown", found.keys() - expected.keys()),
    ):
        if keys:
            raise InvalidInput(
                f"EAGLE drafter {name} {what} {', '.join(sorted(keys)[:6])}; it holds {', '.join(expected)}"
            )
    for key, weight in expected.items():
        if found[key].shape != weight.shape:
            raise InvalidInput(
                f"EAGLE drafter {name}: {key} is {tuple(found[key].shape)}; "
                f"its sizes ask for {tuple(weight.shape)}"
            )
