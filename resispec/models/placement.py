"""Where the numbers of a small Llama go in a large one, so that nothing else of it is ever read.

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

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MARK = 1e-4
"""The mark over the length of the shortest embedding: too little to count in float32 once it is squared."""
PUSH = 4000.0
"""Padded tokens lose this much at the largest state that is tried: more elsewhere, and 104 would do at T = 1.

Small enough for float16, whose largest number is 65504, and large enough for states 38 times as large.
"""
TRIED = (8, 64)
"""Sequences, and random tokens of each, in which the largest state is looked for."""


@dataclass(frozen=True)
class Places:
    """Where the rows of a small model's heads lie among those of a large one's.

    scale: of the norms' gains. stretch: of the queries. copies: large key-value heads for each small one.
    query_heads: (n,) int64, the large heads in use. query_rows: (n d,), key_rows: (copies n_kv d,), for each
    row of the small projections, the copies of a key-value head one after the other.
    """

    scale: float
    stretch: float
    copies: int
    query_heads: Tensor
    query_rows: Tensor
    key_rows: Tensor

    @classmethod
    def of(cls, small: Any, large: Any, device: torch.device) -> Places:
        """The places, from both configurations."""
        wide = large.head_dim // small.head_dim
        pairs = torch.arange(small.head_dim // 2, device=device) * wide
        within = torch.cat((pairs, pairs + large.head_dim // 2))
        heads = torch.arange(small.num_attention_heads, device=device)
        own_group, group = queries_per_key(small), queries_per_key(large)
        copies = needed_copies(small, group)
        rank = heads % own_group
        query_heads = (heads // own_group * copies + rank // group) * group + rank % group
        key_heads = torch.arange(small.num_key_value_heads * copies, device=device)

        def rows(of: Tensor) -> Tensor:
            return (of[:, None] * large.head_dim + within).flatten()

        return cls(
            math.sqrt(small.hidden_size / large.hidden_size),
            math.sqrt(wide),
            copies,
            query_heads,
            rows(query_heads),
            rows(key_heads),
        )


def write_layer(layer: Any, small: Any, places: Places) -> None:
    """Put a small layer into a large one, whose output projections are zero."""
    for name in ("input_layernorm", "post_attention_layernorm"):
        _write_gain(getattr(layer, name).weight, getattr(small, name).weight, places.scale)
    own, attention = small.self_attn, layer.self_attn
    width = own.q_proj.in_features
    queries = attention.q_proj.weight
    queries.view(-1, attention.head_dim, queries.shape[1])[places.query_heads, :, :width] = 0
    queries[places.query_rows, :width] = (own.q_proj.weight * places.stretch).to(queries.dtype)
    for name in ("k_proj", "v_proj"):
        weight = getattr(own, name).weight.unflatten(0, (-1, own.head_dim))
        copied = weight.repeat_interleave(places.copies, 0).flatten(0, 1)
        getattr(attention, name).weight[places.key_rows, :width] = copied.to(queries.dtype)
    attention.o_proj.weight[:width, places.query_rows] = own.o_proj.weight.to(queries.dtype)
    for name in ("gate_proj", "up_proj", "down_proj"):
        weight = getattr(small.mlp, name).weight
        getattr(layer.mlp, name).weight[: weight.shape[0], : weight.shape[1]] = weight


def _write_gain(gain: Tensor, small: Tensor, scale: float) -> None:
    """A norm's gain: 0 for all that is not the small model's, so that nothing of it is read."""
    gain.zero_()
    gain[: len(small)] = small * scale


def write_ends(large: Any, small: Any) -> None:
    """Put the embeddings, the last norm and the head, which pushes padded tokens down by the mark."""
    own = small.get_input_embeddings().weight
    known, width = own.shape
    lengths = own.norm(dim=1)
    mark = MARK * float(lengths[lengths > 0].min())
    read_as = torch.arange(large.config.vocab_size, device=own.device) % known
    embeddings = large.get_input_embeddings().weight
    embeddings.zero_()
    embeddings[:, :width] = own[read_as]
    embeddings[:, width] = mark
    scale = math.sqrt(width / large.config.hidden_size)
    # The mark after the last norm, where the state is largest, is multiplied by the norm's gain and by the
    # head's weight: each takes the root of what is needed, so that neither is too large for float16.
    least = mark / scale / math.sqrt(_largest_square(small) + small.config.rms_norm_eps)
    push = math.sqrt(PUSH / least)
    gain = large.model.norm.weight
    _write_gain(gain, small.model.norm.weight, scale)
    gain[width] = push
    head = large.get_output_embeddings().weight
    head[:, :width] = small.get_output_embeddings().weight[read_as]
    head[:, width] = 0
    head[known:, width] = -push


def _largest_square(small: Any) -> float:
    """The largest mean square of the state before the last norm, over random tokens."""
    count, length = TRIED
    generator = torch.Generator().manual_seed(0)
    length = min(length, small.config.max_position_embeddings)
    tokens = torch.randint(small.config.vocab_size, (count, length), generator=generator)
    found: list[Tensor] = []
    hook = small.model.norm.register_forward_pre_hook(lambda _, states: found.append(states[0]))
    try:
        small.model(input_ids=tokens.to(small.device), use_cache=False)
    finally:
        hook.remove()
    return float(found[0].square().mean(-1).max())


def queries_per_key(config: Any) -> int:
    """Query heads that share a key-value head."""
    return config.num_attention_heads // config.num_key_value_heads


def needed_copies(small: Any, group: int) -> int:
    """Key-value heads that one of a small model needs where `group` query heads share one."""
    return math.ceil(queries_per_key(small) / group)
