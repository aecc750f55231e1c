"""A Llama of any larger shape that computes the law of a small one: true acceptance at real cost.

Every number that a large forward reads is there, so that it costs what it costs; what is added changes no
logit. The hidden state holds the small one in its first H of H' dimensions, and then

- a *mark*, one dimension with the same small value for every token, its share of the state's square 1e-8 or
  less: it lets the head push tokens down that the small model does not have;
- zeros, which nothing writes to, so that weights that read them may have any value and have random ones.

Where the small model's numbers go:

- RMSNorm divides by the root of a mean over H' dimensions: its gain is multiplied by sqrt(H / H'), its
  epsilon by H / H'.
- A head of d dimensions lies in one of D = m d. Rotary pair i of d / 2 turns by base^(-2 i / d), as pair m i
  of D / 2 does. Attention divides by sqrt(D), so queries are multiplied by sqrt(D / d). In the D - d
  dimensions between, keys and values are random, queries and output weights zero.
- Query heads that share a key-value head share one in the large model, or several copies of it.
- Further heads, layers and columns of the MLP are random up to their output projection, which is zero.
- Token v past the small vocabulary of V is read as token v mod V. Its logit is that of v mod V less some
  thousand, so that its mass is exactly 0 in every precision.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from resispec.errors import InvalidInput
from resispec.models.causal import TransformersModel
from resispec.models.checkpoint import check_device, find_dtype
from resispec.models.pair import Pair

FILL = 0.02
"""Standard deviation of the weights that change no logit; that of an untrained Llama."""
MARK = 1e-4
"""The mark over the length of the shortest embedding: too little to count in float32 once it is squared."""
PUSH = 4000.0
"""Padded tokens lose this much at the largest state that is tried: more elsewhere, and 104 would do at T = 1.

Small enough for float16, whose largest number is 65504, and large enough for states 38 times as large.
"""
TRIED = (8, 64)
"""Sequences, and random tokens of each, in which the largest state is looked for."""


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
    _check(small.config, sizes)
    small = copy.deepcopy(small).to(device, torch.float32)
    config = _config(small.config, sizes)
    with torch.device("meta"):
        large: Any = LlamaForCausalLM(config)
    large.to(dtype).to_empty(device=device)
    # The frequencies are no weights, stay in float32 and were on no device until here.
    large.model.rotary_emb = LlamaRotaryEmbedding(config).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    for parameter in large.parameters():
        parameter.normal_(0, FILL, generator=generator)
    _write_ends(large, small)
    for layer in large.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        layer.input_layernorm.weight.fill_(1)
        layer.post_attention_layernorm.weight.fill_(1)
    for layer, small_layer in zip(large.model.layers, small.model.layers, strict=False):
        _write_attention(layer.self_attn, small_layer.self_attn, small.config, config)
        for name in ("gate_proj", "up_proj", "down_proj"):
            weight = getattr(small_layer.mlp, name).weight
            getattr(layer.mlp, name).weight[: weight.shape[0], : weight.shape[1]] = weight
        for name in ("input_layernorm", "post_attention_layernorm"):
            _write_gain(getattr(layer, name).weight, getattr(small_layer, name).weight)
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
    small_law, large_law = (
        model(input_ids=tokens[None].to(model.device)).logits[0].double().softmax(-1).cpu()
        for model in (small, large)
    )
    size = small_law.shape[-1]
    gaps = (small_law - large_law[:, :size]).abs().sum(-1) + large_law[:, size:].sum(-1)
    return 0.5 * float(gaps.max())


def _config(small: Any, sizes: Mapping[str, int]) -> LlamaConfig:
    """The large configuration; its field `inflated` has the sizes of the small model."""
    names = ("hidden_act", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
    options: dict[str, Any] = {**sizes, "inflated": {name: getattr(small, name) for name in sizes}}
    config = LlamaConfig(
        **options,
        **{name: getattr(small, name) for name in names},
        rope_parameters=copy.deepcopy(small.rope_parameters),
        rms_norm_eps=small.rms_norm_eps * small.hidden_size / sizes["hidden_size"],
        tie_word_embeddings=False,
    )
    config._name_or_path = "inflated Llama"
    return config


def _check(small: Any, sizes: Mapping[str, int]) -> None:
    """Raise InvalidInput unless a configuration is that of a plain Llama, and the sizes can hold it."""
    kind = {name: getattr(small, name, False) for name in ("model_type", "attention_bias", "mlp_bias")}
    kind["rope_type"] = (getattr(small, "rope_parameters", None) or {}).get("rope_type")
    for (name, value), allowed in zip(kind.items(), ("llama", False, False, "default"), strict=True):
        if value != allowed:
            raise InvalidInput(f"a model with {name} {value!r} cannot be inflated; allowed: {allowed!r}")
    hidden, heads, kv_heads = (
        sizes[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    needed = small.num_key_value_heads * _needed_copies(small, heads // kv_heads)
    limits = {name: getattr(small, name) for name in ("intermediate_size", "num_hidden_layers", "vocab_size")}
    limits |= {"hidden_size": small.hidden_size + 1, "num_key_value_heads": needed}
    for name, allowed in limits.items():
        if sizes[name] < allowed:
            raise InvalidInput(f"{name} is {sizes[name]}; allowed: from {allowed}, to hold the small model")
    if hidden // heads % small.head_dim:
        raise InvalidInput(
            f"hidden_size {hidden} over num_attention_heads {heads} makes heads of {hidden // heads} "
            f"dimensions; allowed: a multiple of the small model's {small.head_dim}, so that rotary "
            "frequencies are the same"
        )


def _write_attention(attention: Any, narrow: Any, small: Any, large: Any) -> None:
    """Put small heads into large ones, whose output weights are zero. small, large: the configurations."""
    width, ratio = small.hidden_size, large.head_dim // small.head_dim
    pairs = torch.arange(small.head_dim // 2, device=attention.q_proj.weight.device) * ratio
    dims = torch.cat((pairs, pairs + large.head_dim // 2))  # places of a small head's dimensions
    heads = torch.arange(small.num_attention_heads, device=dims.device)
    small_group, group = _queries_per_key(small), _queries_per_key(large)
    copies = _needed_copies(small, group)  # large key-value heads for each small one
    rank = heads % small_group
    places = (heads // small_group * copies + rank // group) * group + rank % group  # of small query heads
    queries = attention.q_proj.weight.unflatten(0, (-1, large.head_dim))
    queries[places, :, :width] = 0
    weight = narrow.q_proj.weight.unflatten(0, (-1, small.head_dim)) * math.sqrt(ratio)
    queries[places[:, None], dims, :width] = weight.to(queries.dtype)
    for name in ("k_proj", "v_proj"):
        weight = getattr(narrow, name).weight.unflatten(0, (-1, small.head_dim)).repeat_interleave(copies, 0)
        rows = getattr(attention, name).weight.unflatten(0, (-1, large.head_dim))
        rows[: len(weight), dims, :width] = weight.to(rows.dtype)
    outputs = attention.o_proj.weight.unflatten(1, (-1, large.head_dim))
    outputs[:width, places[:, None], dims] = narrow.o_proj.weight.unflatten(1, (-1, small.head_dim)).to(
        outputs.dtype
    )


def _write_gain(gain: Tensor, small: Tensor) -> None:
    """A norm's gain: 0 for all that is not the small model's, so that nothing of it is read."""
    gain.zero_()
    gain[: len(small)] = small * math.sqrt(len(small) / len(gain))


def _write_ends(large: Any, small: Any) -> None:
    """Put the embeddings, the last norm and the head, which pushes padded tokens down by the mark."""
    source = small.get_input_embeddings().weight
    size, width = source.shape
    lengths = source.norm(dim=1)
    mark = MARK * float(lengths[lengths > 0].min())
    ids = torch.arange(large.config.vocab_size, device=source.device) % size
    embeddings = large.get_input_embeddings().weight
    embeddings.zero_()
    embeddings[:, :width] = source[ids]
    embeddings[:, width] = mark
    scale = math.sqrt(width / large.config.hidden_size)
    # The mark after the last norm, where the state is largest, is multiplied by the norm's gain and by the
    # head's weight: each takes the root of what is needed, so that neither is too large for float16.
    least = mark / scale / math.sqrt(_largest_square(small) + small.config.rms_norm_eps)
    push = math.sqrt(PUSH / least)
    gain = large.model.norm.weight
    _write_gain(gain, small.model.norm.weight)
    gain[width] = push
    head = large.get_output_embeddings().weight
    head[:, :width] = small.get_output_embeddings().weight[ids]
    head[:, width] = 0
    head[size:, width] = -push


def _largest_square(small: Any) -> float:
    """The largest mean square of the state before the last norm, over random tokens."""
    count, length = TRIED
    generator = torch.Generator().manual_seed(0)
    length = min(length, small.config.max_position_embeddings)
    tokens = torch.randint(small.config.vocab_size, (count, length), generator=generator)
    states: list[Tensor] = []
    with small.model.norm.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0])):
        small.model(input_ids=tokens.to(small.device), use_cache=False)
    return float(states[0].square().mean(-1).max())


def _queries_per_key(config: Any) -> int:
    """Query heads that share a key-value head."""
    return config.num_attention_heads // config.num_key_value_heads


def _needed_copies(small: Any, group: int) -> int:
    """Key-value heads that one of a small model needs where `group` query heads share one."""
    return math.ceil(_queries_per_key(small) / group)
