"""A Llama of any larger shape that computes the law of a small one: true acceptance at real cost.

Every number that a large forward reads is there, so that it costs what it costs; what is added changes no
logit. `resispec.models.placement` says what lies where, and why it has no part in the law.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from resispec.errors import InvalidInput
from resispec.models.causal import TransformersModel, check_device, find_dtype
from resispec.models.pair import Pair
from resispec.models.placement import Places, needed_copies, write_ends, write_layer

FILL = 0.02
"""Standard deviation of the weights that change no logit; that of an untrained Llama."""


@torch.no_grad()
def inflate(
    small: Any, sizes: Mapping[str, int], device: torch.device, dtype: torch.dtype, seed: int = 0
) -> LlamaForCausalLM:
    """A Llama of larger sizes with the law of `small`, made on the device in its precision.

    small: a `LlamaForCausalLM` in float32, with or without tied embeddings. sizes: of the large one, these
    fields of `LlamaConfig`: hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
    num_key_value_heads and vocab_size. The context is that of `small`. seed: of the weights that change no
    logit; the same one gives the same weights on the same kind of device.
    Beside the result memory holds a copy of `small`, and of its embeddings one for the large vocabulary.
    Raises InvalidInput when `small` is no plain Llama, or does not fit into the sizes.
    """
    _check_kind(small.config)
    _check_fit(small.config, sizes)
    small = copy.deepcopy(small).to(device, torch.float32)
    large = _empty(_config(small.config, sizes), device, dtype)
    generator = torch.Generator(device).manual_seed(seed)
    for parameter in large.parameters():
        parameter.normal_(0, FILL, generator=generator)
    places = Places.of(small.config, large.config, device)
    write_ends(large, small)
    for index, layer in enumerate(large.model.layers):
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        layer.input_layernorm.weight.fill_(1)
        layer.post_attention_layernorm.weight.fill_(1)
        if index < small.config.num_hidden_layers:
            write_layer(layer, small.model.layers[index], places)
    return large.eval()


def inflate_pair(
    small: Pair, target: Mapping[str, int], draft: Mapping[str, int], device: str, dtype: str
) -> Pair:
    """The pair of two small Llamas in larger sizes, with their laws and their tokenizer.

    small: in float32. target, draft: sizes, as for `inflate`. device, dtype: as for `load_pair`.
    Raises InvalidInput as `inflate`, for an unknown device or dtype, and for a pair without a draft model.
    """
    check_device(device)
    models: tuple[Any, Any] = (small.target, small.draft_model())
    large_target, large_draft = (
        TransformersModel(inflate(model.module, sizes, torch.device(device), find_dtype(dtype), seed))
        for seed, (model, sizes) in enumerate(zip(models, (target, draft), strict=True))
    )
    return Pair(large_target, large_draft, small.tokenizer)


@torch.inference_mode()
def distance(small: Any, large: Any, tokens: Tensor) -> float:
    """The largest total variation between the next token's laws of two Llamas, over all positions.

    tokens: (L,) int64. The laws are those of temperature 1; tokens that `small` does not have count in full.
    """
    own, other = (
        model(input_ids=tokens[None].to(model.device)).logits[0].double().softmax(-1).cpu()
        for model in (small, large)
    )
    size = own.shape[-1]
    gaps = (own - other[:, :size]).abs().sum(-1) + other[:, size:].sum(-1)
    return 0.5 * float(gaps.max())


def _empty(config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    """A Llama whose weights are on the device in their precision and not yet written."""
    with torch.device("meta"):
        large: Any = LlamaForCausalLM(config)
    large.to(dtype).to_empty(device=device)
    # The frequencies are no weights, stay in float32 and were on no device until here.
    large.model.rotary_emb = LlamaRotaryEmbedding(config).to(device)
    return large


def _config(small: Any, sizes: Mapping[str, int]) -> LlamaConfig:
    """The large configuration; its field `inflated` has the sizes of the small model."""
    given: dict[str, Any] = {**sizes, "inflated": {name: getattr(small, name) for name in sizes}}
    config = LlamaConfig(
        **given,
        hidden_act=small.hidden_act,
        max_position_embeddings=small.max_position_embeddings,
        rope_parameters=copy.deepcopy(small.rope_parameters),
        rms_norm_eps=small.rms_norm_eps * small.hidden_size / sizes["hidden_size"],
        tie_word_embeddings=False,
        bos_token_id=small.bos_token_id,
        eos_token_id=small.eos_token_id,
        pad_token_id=small.pad_token_id,
    )
    config._name_or_path = "inflated Llama"
    return config


def _check_kind(config: Any) -> None:
    """Raise InvalidInput unless a configuration is that of a Llama as everything here takes it."""
    found = {
        "model_type": (config.model_type, "llama"),
        "attention_bias": (getattr(config, "attention_bias", False), False),
        "mlp_bias": (getattr(config, "mlp_bias", False), False),
        "rope_type": ((getattr(config, "rope_parameters", None) or {}).get("rope_type"), "default"),
    }
    for name, (value, allowed) in found.items():
        if value != allowed:
            raise InvalidInput(f"a model with {name} {value!r} cannot be inflated; allowed: {allowed!r}")


def _check_fit(small: Any, sizes: Mapping[str, int]) -> None:
    """Raise InvalidInput for the first size that cannot hold the small model."""
    hidden, heads, shared = (
        sizes[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    least = {name: getattr(small, name) for name in ("intermediate_size", "num_hidden_layers", "vocab_size")}
    least |= {"hidden_size": small.hidden_size + 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    for name, allowed in least.items():
        if sizes[name] < allowed:
            raise InvalidInput(f"{name} is {sizes[name]}; allowed: from {allowed}, to hold the small model")
    if heads % shared:
        raise InvalidInput(
            f"num_attention_heads is {heads}; allowed: a multiple of num_key_value_heads, {shared}"
        )
    if hidden % heads or hidden // heads % small.head_dim:
        raise InvalidInput(
            f"hidden_size {hidden} over num_attention_heads {heads} makes heads of {hidden / heads:g} "
            f"dimensions; allowed: a multiple of the small model's {small.head_dim}, so that rotary "
            "frequencies are the same"
        )
    needed = small.num_key_value_heads * needed_copies(small, heads // shared)
    if shared < needed:
        raise InvalidInput(
            f"num_key_value_heads is {shared}; allowed: from {needed}, for the small model's "
            f"{small.num_attention_heads} query heads in groups of {heads // shared}"
        )
