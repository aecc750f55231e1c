"""The EAGLE drafter (arXiv 2401.15077, 2406.16858): one Llama layer that predicts the target's next feature.

A feature is the target's hidden state after its final norm. Row t pairs feature f_t with the next token
x_{t+1}, has position t, and predicts f_{t+1}; the target's own head turns that into the law of x_{t+2}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from resispec.models.kv_cache import SlabCache


class EagleModule(nn.Module):
    """fc(embedding, feature), then a Llama layer without its first norm; there is no final norm.

    Parameters have their published names.
    """

    def __init__(self, config: LlamaConfig, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        layer: Any = LlamaDecoderLayer(config, layer_idx=0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def forward(self, tokens: Tensor, features: Tensor, positions: Tensor, **attention: Any) -> Tensor:
        """Predicted features (..., K, H).

        tokens, positions: (..., K) int64; features: (..., K, H), the feature before each token. attention:
        the layer's mask and cache; without a mask every row sees those before it and itself.
        """
        hidden = self.fc(torch.cat((self.embed_tokens(tokens), features), -1))
        return self.layers[0](hidden, position_embeddings=self.rotary_emb(hidden, positions), **attention)


class EagleSession:
    """One sequence in an EAGLE drafter, with the cache of what was forwarded."""

    def __init__(self, module: EagleModule, capacity: int) -> None:
        self._module, self._dtype = module, module.fc.weight.dtype
        self.device = module.fc.weight.device
        self._rows = SlabCache(1, capacity, self.device)

    @property
    def length(self) -> int:
        """Cached rows."""
        return self._rows.length

    @torch.inference_mode()
    def forward(self, tokens: Tensor, features: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Append K rows to the cache and return their predicted features (K, H).

        tokens, positions: (K,) int64; features: (K, H). visible: (K, length + K) bool, True where a row may
        attend.
        """
        return self._module(
            tokens[None],
            features[None].to(self._dtype),
            positions[None],
            attention_mask=visible[None, None],
            past_key_values=self._rows.cache,
            use_cache=True,
        )[0]

    def extend(self, tokens: Sequence[int], features: Tensor) -> Tensor:
        """Append rows of committed tokens and true features; return predictions (K, H).

        Each row sees all before it.
        """
        past, count, device = self.length, len(tokens), self.device
        positions = torch.arange(past, past + count, device=device)
        visible = torch.ones(count, past + count, dtype=torch.bool, device=device).tril(past)
        return self.forward(torch.tensor(tokens, device=device), features, positions, visible)

    @torch.inference_mode()
    def keep(self, past: int) -> None:
        """Keep the first `past` cached rows and forget the others."""
        self._rows.keep(past, ())


class EagleModel:
    """An EAGLE drafter, ready to draft. It has no head: predicted features go through the target's."""

    def __init__(self, module: EagleModule) -> None:
        self.module = module.eval()
        self.vocab_size: int = module.config.vocab_size
        self.hidden_size: int = module.config.hidden_size
        self.context: int = module.config.max_position_embeddings
        self.device: torch.device = module.fc.weight.device

    def session(self, capacity: int) -> EagleSession:
        """Start an empty sequence whose cache holds `capacity` rows."""
        return EagleSession(self.module, capacity)


def build_eagle(bias: bool, seed: int = 0, **sizes: Any) -> EagleModule:
    """A freshly initialised drafter in float32, from the fields of `LlamaConfig`.

    The caller's random state stays as it was.
    """
    config: Any = LlamaConfig(**sizes)
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return EagleModule(config, bias)
