"""What the published layout of EAGLE-3 drafters has beyond EAGLE-1's: a vocabulary map, tapped layers.

`d2t` (D,) holds offsets: token i of the drafter is token i + d2t[i] of the target. `t2d` (V,) is True for the
target's tokens that have one. Where both vocabularies have the same size neither is read, as by its authors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig

from resispec.errors import InvalidInput
from resispec.models.eagle3 import NUM_TAPS, Eagle3Module, build_eagle3, usual_taps

TAPS = "eagle_aux_hidden_state_layer_ids"
TARGET_SIZE = "target_hidden_size"
DRAFT_VOCAB = "draft_vocab_size"
MAPS = ("d2t", "t2d")
_UNSUPPORTED = ("norm_before_residual", "norm_before_fc", "fc_norm")  # of later layouts; true there


def is_eagle3(weights: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint is one of EAGLE-3, by the name of its layer."""
    return any(key.startswith("midlayer.") for key in weights)


def build_from(
    name: str, content: Mapping[str, Any], sizes: Mapping[str, Any], weights: dict[str, Tensor], target: Any
) -> Eagle3Module:
    """The untrained network of a checkpoint; `weights` get the maps that it uses in place of their own.

    content: its config.json; sizes: those of its fields that `LlamaConfig` has. Raises InvalidInput naming
    the drafter and what is wrong.
    """
    asked = [key for key in _UNSUPPORTED if content.get(key)]
    if asked:
        raise InvalidInput(f"EAGLE drafter {name} has {asked[0]} {content[asked[0]]!r}; allowed: false")
    token_ids = _token_ids(name, content, weights)
    taps = _taps(name, content, target.module.config.num_hidden_layers)
    target_size = content.get(TARGET_SIZE) or sizes["hidden_size"]
    module = build_eagle3(LlamaConfig(**sizes), target_size, taps, token_ids)
    weights |= {key: getattr(module, key) for key in MAPS}
    return module


def described(module: Eagle3Module) -> dict[str, Any]:
    """The fields of config.json that `build_from` reads."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        DRAFT_VOCAB: len(module.d2t),
        TARGET_SIZE: module.fc.in_features // NUM_TAPS,
        TAPS: list(module.taps),
    }


def _token_ids(name: str, content: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Tensor:
    """The target's ids (D,) of the drafter's tokens."""
    vocab, found = content["vocab_size"], content.get(DRAFT_VOCAB)
    num_draftable = vocab if found is None else found
    if type(num_draftable) is not int or not 1 <= num_draftable <= vocab:
        raise InvalidInput(
            f"EAGLE drafter {name} has {DRAFT_VOCAB} {found!r}; allowed: whole numbers from 1 to {vocab}"
        )
    own = torch.arange(num_draftable)
    if num_draftable == vocab:
        return own
    if (offsets := weights.get("d2t")) is None:
        raise InvalidInput(f"EAGLE drafter {name} lacks d2t, with {num_draftable} of {vocab} tokens")
    if offsets.shape != own.shape or offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise InvalidInput(
            f"EAGLE drafter {name}: d2t is {tuple(offsets.shape)} {offsets.dtype}; "
            f"allowed: ({num_draftable},) whole numbers"
        )
    token_ids = own + offsets.long()
    outside = (token_ids < 0) | (token_ids >= vocab)
    if outside.any():
        place = int(outside.nonzero()[0])
        raise InvalidInput(
            f"EAGLE drafter {name}: d2t maps token {place} to {int(token_ids[place])}; "
            f"the target's tokens are 0 to {vocab - 1}"
        )
    counts = torch.bincount(token_ids, minlength=vocab)
    if counts.max() > 1:
        raise InvalidInput(
            f"EAGLE drafter {name}: d2t maps {int(counts.max())} tokens to {int(counts.argmax())}; "
            "allowed: one"
        )
    _check_mask(name, weights.get("t2d"), counts > 0)
    return token_ids


def _check_mask(name: str, found: Tensor | None, expected: Tensor) -> None:
    """Raise InvalidInput where t2d (V,) is there and is not the mask (V,) of the tokens that d2t reaches."""
    if found is None:
        return
    if found.shape != expected.shape:
        raise InvalidInput(
            f"EAGLE drafter {name}: t2d is {tuple(found.shape)}; allowed: {tuple(expected.shape)}"
        )
    differs = found.bool() != expected
    if differs.any():
        place = int(differs.nonzero()[0])
        raise InvalidInput(
            f"EAGLE drafter {name}: t2d says {bool(found[place])} of token {place}, d2t the opposite"
        )


def _taps(name: str, content: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The target's layers whose inputs are features.

    A list of the configuration itself names layers by what enters them (vLLM), one within `eagle_config` by
    what leaves them (SGLang).
    """
    nested = (content.get("eagle_config") or {}).get(TAPS)
    if (own := content.get(TAPS)) is not None:
        found, first = own, 0
    elif nested is not None:
        found, first = nested, 1
    else:
        found, first = list(usual_taps(num_layers)), 0
    taps = [layer + first for layer in found] if _are_numbers(found) else []
    if len(taps) != NUM_TAPS or not all(0 <= layer < num_layers for layer in taps):
        raise InvalidInput(
            f"EAGLE drafter {name} reads layers {found!r} of a target with {num_layers}; "
            f"allowed: {NUM_TAPS} numbers from {-first} to {num_layers - 1 - first}"
        )
    return tuple(taps)


def _are_numbers(found: Any) -> bool:
    return isinstance(found, list) and all(type(layer) is int for layer in found)
