"""Trains an EAGLE drafter on its target's own features: the next feature, and the law that it gives.

As published (arXiv 2401.15077): loss = SmoothL1(f', f) + w CE(law(f), law(f')), uniform noise on the input
features, embeddings and head frozen; the rest as in `DrafterTraining`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from resispec.errors import InvalidInput
from resispec.models import EagleModule, build_eagle
from resispec.training.base import DrafterTraining

_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "hidden_act", "rms_norm_eps", "max_position_embeddings", "bos_token_id", "eos_token_id",
    "rope_parameters",
)  # fmt: skip


def new_drafter(target: Any, seed: int) -> EagleModule:
    """An untrained drafter for a transformers Llama: its sizes, its embeddings (frozen), its device; float32.

    Raises InvalidInput when the target is no Llama.
    """
    config = target.config
    if config.model_type != "llama":
        raise InvalidInput(f"EAGLE drafters are made for Llama targets; found {config.model_type!r}")
    sizes = {name: getattr(config, name) for name in _SIZES}
    module = build_eagle(True, seed, num_hidden_layers=1, **sizes)
    module.embed_tokens.weight.data = target.get_input_embeddings().weight.detach().float().clone()
    module.embed_tokens.weight.requires_grad_(False)
    return module.to(target.device)


class EagleTraining(DrafterTraining):
    """The training of a drafter from `new_drafter`: of its features, and of their laws in nats per token."""

    measured = ("feature_loss", "law_loss_nats")

    def _losses(self, tokens: Tensor, is_real: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        recipe, device = self.recipe, tokens.device
        with torch.no_grad():
            features = self._target.base_model(input_ids=tokens, use_cache=False).last_hidden_state.float()
        generator = Generator(device).manual_seed(self._seed)
        noise = torch.rand(features.shape, generator=generator, device=device) - 0.5
        noisy = features + noise * recipe.noise * 512 / tokens.shape[1]
        regression, law = losses(self.module, self._head, tokens, (features, noisy), is_real)
        return regression + recipe.law_weight * law, (regression, law)


def losses(
    module: EagleModule, head: Tensor, tokens: Tensor, features: tuple[Tensor, Tensor], is_real: Tensor
) -> tuple[Tensor, Tensor]:
    """Both losses, means over the real tokens: SmoothL1 of the feature, cross-entropy of its law in nats.

    head: (V, H). tokens: (B, T) int64. features: the target's, and the same with noise, (B, T, H). is_real:
    (B, T) bool.
    """
    true, noisy = features
    positions = torch.arange(tokens.shape[1] - 1, device=tokens.device)[None]
    predicted = module(tokens[:, 1:], noisy[:, :-1], positions)[is_real[:, 1:]]
    wanted = true[:, 1:][is_real[:, 1:]]
    law = functional.cross_entropy(predicted @ head.T, (wanted @ head.T).softmax(-1))
    return functional.smooth_l1_loss(predicted, wanted), law
