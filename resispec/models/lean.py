"""The body of a plain Llama with few operations: what lies between its matrices takes little time.

A forward of few positions reads the weights and does little else, yet the modules of transformers
take as long for the small operations between the matrices as for the matrices. Here queries, keys
and values are one matrix, so are gate and up; rotations come from a table, a norm is a few
operations, and attention reads the cache where it lies, each key-value head once for all query
heads that share it. Shapes depend on no data and nothing waits, so a forward can be captured, see
`resispec.cuda_graphs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef, shared_cache
from torch.nn import functional
from transformers.activations import SiLUActivation
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama

from resispec.models.grid import grid_of, joined
from resispec.models.kv_cache import FULL, KeyValues, Mask, windows_of
from resispec.models.linear import ROWS, Multiply, Product, QuickLinear, bucket, choices
from resispec.models.module_state import is_known, is_simple, is_untouched

ROPES = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary frequencies that are the same at every length."""
KINDS = (
    *(modeling_llama.LlamaModel, modeling_llama.LlamaDecoderLayer, modeling_llama.LlamaAttention),
    *(modeling_llama.LlamaMLP, modeling_llama.LlamaRMSNorm, modeling_llama.LlamaRotaryEmbedding),
    *(nn.ModuleList, nn.Embedding, nn.Linear, QuickLinear, nn.SiLU, SiLUActivation),
)
"""The modules that a plain Llama consists of; a subclass may do anything."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Precisions; in float64 a norm of transformers rounds to float32, which would not be repeated."""


def is_plain(module: Any) -> bool:
    """Whether a `LeanBody` can do what the body of a causal language model does.

    The body's configuration and its parts tell. Not so with settings that differ between layers or
    norms, biases, windows, frequencies that change, eager attention, hooks, adapters, other
    functions in place of transformers' own, and parameters of other kinds, of several precisions,
    on several devices, or in memory that processes or other tensors share: fusing would take them
    out of it.
    """
    body = module.base_model
    if type(body) is not modeling_llama.LlamaModel:
        return False
    config: Any = body.config
    rope = getattr(config, "rope_parameters", None) or {}
    parameters = list(body.parameters())
    if not all(map(is_simple, parameters)):
        return False
    places = {(value.dtype, value.device, value.is_inference()) for value in parameters}
    return (
        all(
            type(part) in KINDS and is_untouched(part) and getattr(part, "bias", None) is None
            for part in body.modules()
        )
        and _is_alike(body)
        and all(map(is_known, functions()))
        and config._attn_implementation == "sdpa"
        and config.hidden_act == "silu"
        and rope.get("rope_type") in ROPES
        and windows_of("", config) == FULL
        and len(body.layers) == config.num_hidden_layers
        and len(places) == 1
        and parameters[0].device.type in ("cpu", "cuda")
        and parameters[0].dtype in DTYPES
        and not parameters[0].is_inference()
        and not (parameters[0].device.type == "cpu" and any(map(Tensor.is_shared, parameters)))
        and not any(map(_is_held_elsewhere, _together(body)))
    )


def _is_alike(body: Any) -> bool:
    """Whether all layers have the same settings, and all norms."""
    attentions = {(layer.self_attn.scaling, layer.self_attn.head_dim) for layer in body.layers}
    norms = (part for part in body.modules() if type(part) is modeling_llama.LlamaRMSNorm)
    return len(attentions) == len({norm.variance_epsilon for norm in norms}) == 1


def functions() -> list[Any]:
    """The functions of transformers that a Llama's modules call by their names."""
    return [modeling_llama.apply_rotary_pos_emb, ALL_ATTENTION_FUNCTIONS["sdpa"]]


@dataclass(frozen=True)
class _Layer:
    """One layer: four multiplications, and the gains of the norms before the first and third."""

    attention_gain: Tensor
    inputs: Multiply  # queries, keys and values
    outputs: Multiply
    mlp_gain: Tensor
    gate_up: Multiply
    down: Multiply


class LeanBody:
    """The body of a plain Llama; weights are the module's own.

    module: a causal language model for which `is_plain` holds. products: all its multiplications.
    Parameters whose matrices are fused become views of the fused one. Packed weights, see
    `resispec.models.linear`, and gains on a CPU are copies, which do not follow changes.
    """

    def __init__(self, module: Any) -> None:
        config = module.base_model.config
        self._body, self._config = module.base_model, config
        self._attention: Any = self._body.layers[0].self_attn
        self.heads: int = config.num_attention_heads
        self.shared: int = config.num_key_value_heads
        self.head_dim: int = self._attention.head_dim
        self._table = torch.empty(0)
        with torch.inference_mode(False), torch.no_grad():
            self._read()

    def _read(self) -> None:
        body = self._body
        self.dtype: torch.dtype = body.embed_tokens.weight.dtype
        self.device: torch.device = body.embed_tokens.weight.device
        self._embeddings = body.embed_tokens.weight.detach()
        together = _together(body)
        grids = [joined([*map(grid_of, layers)]) for layers in together]
        weights = [*map(_fused, together)]
        self.products = [
            Product(weight, None, choice, grid)
            for weight, choice, grid in zip(weights, choices(weights, grids), grids, strict=True)
        ]
        self._norm, gain = _norm(self.device, self.dtype, body.norm.variance_epsilon)
        self._layers: tuple[list[_Layer], ...] = tuple([] for _ in ROWS)
        parts = iter(self.products)
        for layer in body.layers:
            products = [next(parts) for _ in range(4)]
            gains = [
                gain(norm.weight)
                for norm in (layer.input_layernorm, layer.post_attention_layernorm)
            ]
            for count, layers in zip(ROWS, self._layers, strict=True):
                inputs, outputs, gate_up, down = (product.of(count) for product in products)
                layers.append(_Layer(gains[0], inputs, outputs, gains[1], gate_up, down))
        self._gain = gain(body.norm.weight)

    def table(self, length: int) -> Tensor:
        """Cosines and sines of positions, (length or more, 2, 2, head_dim / 2), by the module.

        The last but one dimension is of the halves of a head; sines of the first are negative.
        """
        if len(self._table) < length or self._table.device != self.device:
            positions = torch.arange(length, device=self.device)
            with torch.inference_mode(False), torch.no_grad():
                cos, sin = self._body.rotary_emb(self._embeddings[:0], positions[None])
            half = self.head_dim // 2
            sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)
            self._table = torch.stack((cos[0], sin), 1).unflatten(2, (2, half))
        return self._table

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Mask,
        rows: LeanRows,
        taps: Sequence[int] = (),
    ) -> Tensor:
        """Features (K, (1 + len(taps)) H) of tokens (K,) int64 at positions (K,) int64.

        mask: of numbers, (1, 1, K, places). rows: the cache, which has made room for these rows.
        taps: the layers whose inputs (K, H) follow the features.
        """
        count, heads, shared, size = len(tokens), self.heads, self.shared, self.head_dim
        group, norm, scale, seen = heads // shared, self._norm, self._attention.scaling, mask
        width, half = (heads + 2 * shared) * size, size // 2
        assert isinstance(seen, Tensor)
        if group > 1:  # the query heads of a group are rows of their key-value head
            seen = (
                seen.expand(-1, -1, group, -1) if count == 1 else seen.repeat_interleave(group, 2)
            )
        turns = rows.table.index_select(0, positions)
        cos, sin = turns[:, :1], turns[:, 1:]
        hidden = functional.embedding(tokens, self._embeddings)
        tapped = {}
        # Few operations, views among them: each costs as much as a small matrix.
        for index, (layer, keys, values, write) in enumerate(
            zip(self._layers[bucket(count)], rows.keys, rows.values, rows.writers(), strict=True)
        ):
            if index in taps:
                tapped[index] = hidden
            states = layer.inputs(norm(hidden, layer.attention_gain))
            turned = states.as_strided((count, heads + shared, 2, half), (width, size, half, 1))
            flipped = turned.flip(2)
            turned.mul_(cos).addcmul_(flipped, sin)
            strides = shared * size, size, width, 1
            write(states.as_strided((2, shared, count, size), strides, heads * size))
            strides = group * size, width, size, 1
            queries = states.as_strided((shared, count, group, size), strides)
            read = functional.scaled_dot_product_attention(
                queries.reshape(1, shared, count * group, size), keys, values, seen, scale=scale
            )
            if count > 1:
                read = read.view(shared, count, group, size).transpose(0, 1)
            hidden = layer.outputs(read.reshape(count, heads * size)).add_(hidden)
            gate, up = layer.gate_up(norm(hidden, layer.mlp_gain)).chunk(2, -1)
            hidden = layer.down(functional.silu(gate).mul_(up)).add_(hidden)
        features = norm(hidden, self._gain)
        return torch.cat((features, *(tapped[tap] for tap in taps)), -1) if taps else features


class LeanRows:
    """A cache as a `LeanBody` uses it.

    rows: the cache, which makes room for the rows of each forward. length: positions are below it.
    keys, values: of each layer, (1, heads, places, head_dim). table: see `LeanBody.table`.
    """

    def __init__(self, body: LeanBody, rows: KeyValues, length: int) -> None:
        self._rows, self.table = rows, body.table(length)
        self._memory = rows.memory(body.shared, body.head_dim, body.dtype)
        self.keys = [memory[:1] for memory in self._memory]
        self.values = [memory[1:] for memory in self._memory]
        self._known: dict[tuple[int, int], list[Callable[[Tensor], Any]]] = {}

    def writers(self) -> list[Callable[[Tensor], Any]]:
        """Writers, one a layer, of keys and values (2, heads, K, head_dim) to their places."""
        places = self._rows.places
        if isinstance(places, Tensor):
            return [partial(memory.index_copy_, 2, places) for memory in self._memory]
        key = places.start, places.stop
        if key not in self._known:
            self._known[key] = [memory[:, :, places].copy_ for memory in self._memory]
        return self._known[key]


def _together(body: Any) -> list[list[Any]]:
    """The linear layers of a plain Llama, four lists a layer; those of a list are one matrix."""
    return [
        layers
        for layer in body.layers
        for attention, mlp in ((layer.self_attn, layer.mlp),)
        for layers in (
            [attention.q_proj, attention.k_proj, attention.v_proj],
            [attention.o_proj],
            [mlp.gate_proj, mlp.up_proj],
            [mlp.down_proj],
        )
    ]


def _lie_as_one(weights: Sequence[Tensor]) -> bool:
    """Whether weights follow one another in one memory, as those that were fused."""
    memories = {weight.untyped_storage().data_ptr() for weight in weights}
    return (
        len(memories) == 1
        and all(weight.is_contiguous() for weight in weights)
        and all(one.data_ptr() + one.nbytes == two.data_ptr() for one, two in pairwise(weights))
    )


def _is_held_elsewhere(layers: Sequence[Any]) -> bool:
    """Whether others hold the memory of weights that would be moved: a state_dict, a process."""
    weights = [layer.weight for layer in layers]
    alone, sent = _uses(torch.empty(1, device="cpu")), [*shared_cache.values()]
    return not _lie_as_one(weights) and any(
        _uses(weight) > alone or StorageWeakRef(weight.untyped_storage()) in sent
        for weight in weights
    )


def _uses(tensor: Tensor) -> int:
    """The number of tensors on a tensor's memory, and of torch's own references to it."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _fused(layers: Sequence[Any]) -> Tensor:
    """The weights of linear layers as one, (sum of out, in), whose parts they become."""
    weights = [layer.weight.detach() for layer in layers]
    sizes = [*map(len, weights)]
    if _lie_as_one(weights):
        width = weights[0].shape[1]
        return weights[0].as_strided((sum(sizes), width), (width, 1))
    whole = torch.cat(weights)
    for layer, part in zip(layers, whole.split(sizes), strict=True):
        layer.weight.data = part
    return whole


def _norm(
    device: torch.device, dtype: torch.dtype, epsilon: float
) -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """RMSNorm as a function of rows (K, H) and what a gain (H,) is turned into for it beforehand.

    On a CPU torch computes its RMSNorm by a chain of operations, of which two lengths need fewer:
    x / sqrt(mean(x^2) + e) = sqrt(H) x / sqrt(|x|^2 + H e).
    """
    if device.type == "cuda":

        def fused(rows: Tensor, gain: Tensor) -> Tensor:
            return functional.rms_norm(rows, [len(gain)], gain, epsilon)

        return fused, Tensor.detach
    wide = torch.promote_types(dtype, torch.float32)
    least: dict[int, Tensor] = {}

    def prepared(gain: Tensor) -> Tensor:
        least[len(gain)] = torch.tensor(math.sqrt(epsilon * len(gain)), dtype=wide)
        return gain.detach().to(wide) * math.sqrt(len(gain))

    def norm(rows: Tensor, gain: Tensor) -> Tensor:
        rows = rows.to(wide)
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return rows.div(length.hypot_(least[len(gain)])).mul_(gain).to(dtype)

    return norm, prepared
