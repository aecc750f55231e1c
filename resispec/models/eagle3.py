"""The EAGLE-3 drafter (arXiv 2503.01840): one Llama layer reads the inputs of three target layers.

Row t pairs the hidden states of token x_t at a low, a middle and a high layer with the next token
x_{t+1}, has position t, and gives the law of x_{t+2} by a head of its own, over a vocabulary of its
own: the target's most frequent tokens. Where the target has not computed these states yet, the
drafter's own output for the row before takes the place of `fc` of the states.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from resispec.models.eagle import CACHE
from resispec.models.own_lm_head import spread

NUM_TAPS = 3
"""The number of the target's layers whose inputs are features."""


class _Layer(nn.Module):
    """A Llama layer that adds to hidden states alone, and whose attention also reads embeddings."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, layer_idx=0)
        for name in ("q_proj", "k_proj", "v_proj"):
            size = getattr(self.self_attn, name).out_features
            setattr(self.self_attn, name, nn.Linear(2 * config.hidden_size, size, bias=False))
        self.mlp = LlamaMLP(config)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(3)
        )

    def forward(self, embeddings: Tensor, hidden: Tensor, **attention: Any) -> Tensor:
        """The layer's output (..., K, H). embeddings, hidden: (..., K, H)."""
        inputs = torch.cat((self.input_layernorm(embeddings), self.hidden_norm(hidden)), -1)
        hidden = hidden + self.self_attn(hidden_states=inputs, **attention)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Module(nn.Module):
    """The drafter's network and vocabulary; parameters and saved buffers have published names.

    config: for the drafter's layer; its `vocab_size` is the target's V. target_size: the target's
    hidden size. taps: the target's layers whose inputs are features. token_ids: (D,) int64, the
    target's id of every token that can be drafted, all different.
    """

    token_ids: Tensor
    d2t: Tensor
    t2d: Tensor

    def __init__(
        self, config: LlamaConfig, target_size: int, taps: tuple[int, ...], token_ids: Tensor
    ) -> None:
        super().__init__()
        size, self.num_draftable = config.hidden_size, len(token_ids)
        self.config, self.taps = config, taps
        self.embed_tokens = nn.Embedding(config.vocab_size, size)
        self.fc = nn.Linear(len(taps) * target_size, size, bias=False)
        self.midlayer = _Layer(config)
        self.norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(size, self.num_draftable, bias=False)
        self.register_buffer("token_ids", token_ids, persistent=False)
        self.register_buffer("d2t", token_ids - torch.arange(self.num_draftable))
        mask = torch.zeros(config.vocab_size, dtype=torch.bool)
        self.register_buffer("t2d", mask.index_fill(0, token_ids, True))
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def forward(
        self, tokens: Tensor, features: Tensor, positions: Tensor, **attention: Any
    ) -> Tensor:
        """Outputs of the layer (..., K, H), which later rows take as features and `head` reads.

        tokens, positions: (..., K) int64. features: the ones before each token, either this
        module's outputs (..., K, H) or the target's features, whose last columns are the inputs of
        the tapped layers. attention: as for `EagleModule`.
        """
        if features.shape[-1] != self.config.hidden_size:
            features = self.fc(features[..., -self.fc.in_features :])
        embeddings = self.embed_tokens(tokens)
        rotary = self.rotary_emb(embeddings, positions)
        return self.midlayer(embeddings, features, position_embeddings=rotary, **attention)

    def draft_logits(self, predicted: Tensor) -> Tensor:
        """Logits (..., D) over the drafter's own vocabulary.

        predicted: outputs (..., H) of `forward`.
        """
        return self.lm_head(self.norm(predicted))

    @torch.inference_mode()
    def head(self, predicted: Tensor) -> Tensor:
        """Logits (K, V) of outputs (K, H), -inf for tokens of the target that cannot be drafted."""
        return spread(self.draft_logits(predicted), self.token_ids, self.config.vocab_size)


def usual_taps(num_layers: int) -> tuple[int, ...]:
    """The layers that are tapped by default: a low, the middle and a high one.

    These are the published layers if the three numbers rise, and the last three layers in smaller
    targets.
    """
    taps = (2, num_layers // 2, num_layers - 3)
    return taps if taps[0] < taps[1] < taps[2] else tuple(range(num_layers - NUM_TAPS, num_layers))


def unrolled(
    module: Eagle3Module, tokens: Tensor, features: Tensor, depth: int
) -> Iterator[Tensor]:
    """The drafter's outputs (B, T - 1 - s, H) at steps s < `depth`, each fed with the last ones.

    tokens: (B, T) int64; features: (B, T, F), the target's. Row t of step s reads token t + 1 + s
    and the output of row t in step s - 1, as if s tokens had been drafted there. It sees rows 0 to
    t of the first step, and row t of every later step up to its own.
    """
    count = tokens.shape[1] - 1
    visible = torch.ones(count, count, dtype=torch.bool, device=tokens.device).tril()
    positions = torch.arange(count, device=tokens.device)[None]
    cache, hidden = DynamicCache(), features[:, :-1]
    for step in range(min(depth, count)):
        rows = count - step
        if step:
            identity = torch.eye(rows, dtype=torch.bool, device=tokens.device)
            visible = torch.cat((visible[:rows], identity), 1)
        hidden = module(
            tokens[:, 1 + step :],
            hidden[:, :rows],
            positions[:, step:],
            attention_mask=visible[None, None],
            use_cache=True,
            **{CACHE: cache},
        )
        yield hidden
