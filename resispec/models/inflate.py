"""A Llama of any larger shape that computes the law of a small one: true acceptance at real cost.

The large model has all weights of its shape, so that its forwards have their real cost; the added
weights change no logit. The first H of the H' dimensions of its hidden state hold the small one;
after them come

- a *mark*, one dimension with the same small value for every token, 1e-8 or less of the state's
  square: it lets the head push down the logits of tokens that the small model does not have;
- zeros, which no layer ever writes to, so that the weights that read them may be random.

The places of the small model's numbers:

- RMSNorm divides by the root of a mean over H' dimensions: its gain is multiplied by
  sqrt(H / H'), its epsilon by H / H'.
- A head of d dimensions lies in a head of D = m d. Rotary pair i of d / 2 turns by
  base^(-2 i / d), as pair m i of D / 2 does. Attention divides by sqrt(D), so queries are
  multiplied by sqrt(D / d). In the other D - d dimensions keys and values are random, and queries
  and output weights are zero.
- Query heads that share a key-value head also share one in the large model, or several copies of
  it.
- Additional heads, layers and columns of the MLP are random, except that their output projections
  are zero.
- A token v beyond the small vocabulary of V tokens is read as token v mod V. Its logit is that of
  v mod V minus some thousands, so that its mass is exactly 0 in every precision.
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

MARK = 1e-4
"""The mark over the shortest embedding's length; its square is too small to count in float32."""
PUSH = 4000.0
"""The amount that a padded token's logit loses at the largest state tried, the least of all.

At temperature 1 an amount of 104 would be enough. 4000 is small enough for float16, whose largest
number is 65504, and large enough for states 38 times as large.
"""


@torch.no_grad()
def inflate(
    small: Any, sizes: Mapping[str, int], device: torch.device, dtype: torch.dtype, seed: int = 0
) -> LlamaForCausalLM:
    """A Llama of larger sizes with the law of `small`, made on `device` in the precision `dtype`.

    small: a `LlamaForCausalLM` in float32, with or without tied embeddings. sizes: the large
    model's values of the fields hidden_size, intermediate_size, num_hidden_layers,
    num_attention_heads, num_key_value_heads and vocab_size of `LlamaConfig`. The context is that of
    `small`. seed: for the weights that change no logit; the same seed gives the same weights on the
    same kind of device.
    Besides the result, memory holds a copy of `small` and one of its embeddings for the large
    vocabulary. Raises InvalidInput when `small` is no plain Llama, or does not fit into the sizes.
    """
    _check(small.config, sizes)
    small = copy.deepcopy(small).to(device, torch.float32)
    config = _config(small.config, sizes)
    with torch.device("meta"):
        large: Any = LlamaForCausalLM(config)
    large.to(dtype).to_empty(device=device)
    # Rotary frequencies are not weights: they stay in float32, and the meta device gave them no
    # values.
    large.model.rotary_emb = LlamaRotaryEmbedding(config).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    for parameter in large.parameters():
        parameter.normal_(0, 0.02, generator=generator)  # as in an untrained Llama
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
    """A pair of two larger Llamas with the laws and the tokenizer of a small pair of Llamas.

    small: the pair, in float32. target, draft: sizes, as for `inflate`. device, dtype: as for
    `load_pair`. Raises InvalidInput as `inflate`, for an unknown device or dtype, and for a pair
    without a draft model.
    """
    check_device(device)
    models: tuple[Any, Any] = (small.target, small.draft_model())
    modules = [
        inflate(model.module, sizes, torch.device(device), find_dtype(dtype), seed)
        for seed, (model, sizes) in enumerate(zip(models, (target, draft), strict=True))
    ]
    large_target, large_draft = map(TransformersModel, modules)
    return Pair(large_target, large_draft, small.tokenizer)


@torch.inference_mode()
def distance(small: Any, large: Any, tokens: Tensor) -> float:
    """The largest total variation, over all positions, between two Llamas' laws of the next token.

    tokens: (L,) int64. The laws are at temperature 1; the mass of tokens that `small` lacks counts
    in full.
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
    names = (
        "hidden_act",
        "max_position_embeddings",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    )
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
    """Raise InvalidInput unless `small` configures a plain Llama that fits into these sizes."""
    kind = {
        name: getattr(small, name, False) for name in ("model_type", "attention_bias", "mlp_bias")
    }
    kind["rope_type"] = (getattr(small, "rope_parameters", None) or {}).get("rope_type")
    for (name, value), allowed in zip(
        kind.items(), ("llama", False, False, "default"), strict=True
    ):
        if value != allowed:
            raise InvalidInput(
                f"a model with {name} {value!r} cannot be inflated; allowed: {allowed!r}"
            )
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    needed = small.num_key_value_heads * _needed_copies(
        small, heads // sizes["num_key_value_heads"]
    )
    limits = {
        name: getattr(small, name)
        for name in ("intermediate_size", "num_hidden_layers", "vocab_size")
    }
    limits |= {"hidden_size": small.hidden_size + 1, "num_key_value_heads": needed}
    for name, allowed in limits.items():
        if sizes[name] < allowed:
            raise InvalidInput(
                f"{name} is {sizes[name]}; allowed: from {allowed}, to hold the small model"
            )
    if hidden // heads % small.head_dim:
        raise InvalidInput(
            f"hidden_size {hidden} over num_attention_heads {heads} makes heads of "
            f"{hidden // heads} dimensions; allowed: a multiple of the small model's "
            f"{small.head_dim}, so that rotary frequencies are the same"
        )


def _write_attention(attention: Any, narrow: Any, small: Any, large: Any) -> None:
    """Write `narrow`'s heads into `attention`, whose output weights are 0.

    small, large: the configurations.
    """
    width, ratio = small.hidden_size, large.head_dim // small.head_dim
    pairs = torch.arange(small.head_dim // 2, device=attention.q_proj.weight.device) * ratio
    dims = torch.cat((pairs, pairs + large.head_dim // 2))  # places of a small head's dimensions
    heads = torch.arange(small.num_attention_heads, device=dims.device)
    small_group, group = narrow.num_key_value_groups, attention.num_key_value_groups
    copies = _needed_copies(small, group)  # large key-value heads for each small one
    rank = heads % small_group
    places = (
        heads // small_group * copies + rank // group
    ) * group + rank % group  # of small query heads
    queries = attention.q_proj.weight.unflatten(0, (-1, large.head_dim))
    queries[places, :, :width] = 0
    weight = narrow.q_proj.weight.unflatten(0, (-1, small.head_dim)) * math.sqrt(ratio)
    queries[places[:, None], dims, :width] = weight.to(queries.dtype)
    for name in ("k_proj", "v_proj"):
        weight = (
            getattr(narrow, name)
            .weight.unflatten(0, (-1, small.head_dim))
            .repeat_interleave(copies, 0)
        )
        rows = getattr(attention, name).weight.unflatten(0, (-1, large.head_dim))
        rows[: len(weight), dims, :width] = weight.to(rows.dtype)
    outputs = attention.o_proj.weight.unflatten(1, (-1, large.head_dim))
    weight = narrow.o_proj.weight.unflatten(1, (-1, small.head_dim))
    outputs[:width, places[:, None], dims] = weight.to(outputs.dtype)


def _write_gain(gain: Tensor, small: Tensor) -> None:
    """Write a norm's gain: 0 in dimensions that the small model lacks, so that none is read."""
    gain.zero_()
    gain[: len(small)] = small * math.sqrt(len(small) / len(gain))


def _write_ends(large: Any, small: Any) -> None:
    """Write embeddings, last norm and head, which pushes padded tokens down by the mark."""
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
    # The mark after the last norm, where the state is largest, is multiplied by the norm's gain and
    # by the head's weight: each is the square root of the needed factor, so that neither is too
    # large for float16.
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
    """The largest mean square of the state before the last norm, for eight random sequences."""
    shape = 8, min(64, small.config.max_position_embeddings)
    tokens = torch.randint(
        small.config.vocab_size, shape, generator=torch.Generator().manual_seed(0)
    )
    states: list[Tensor] = []
    with small.model.norm.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0])):
        small.model(input_ids=tokens.to(small.device), use_cache=False)
    return float(states[0].square().mean(-1).max())


def _needed_copies(small: Any, group: int) -> int:
    """The number of large key-value heads for a small one if `group` query heads share each."""
    return math.ceil(small.num_attention_heads // small.num_key_value_heads / group)
