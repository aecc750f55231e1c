"""Trains an EAGLE drafter on its target's own features: the next feature, and the law that it gives.

As published (arXiv 2401.15077): loss = SmoothL1(f', f) + w CE(law(f), law(f')), uniform noise on the input
features, AdamW, gradients clipped by value, embeddings and head frozen; in float32 whatever the target's
precision. Every step's randomness follows from the seed and the step's number, so a training that goes on
from a checkpoint ends as one that was never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from resispec.errors import InvalidInput
from resispec.models import EagleModule, build_eagle
from resispec.training.recipe import EagleRecipe

_BETAS = (0.9, 0.95)
_FINAL_SHARE = 0.02  # of the peak learning rate, at the end of the cosine
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "hidden_act", "rms_norm_eps", "max_position_embeddings", "bos_token_id", "eos_token_id",
    "rope_parameters",
)  # fmt: skip


@dataclass(frozen=True)
class Sequences:
    """Training text.

    tokens: sequences of at least three tokens. weights: how often each is drawn, in proportion; None: alike.
    """

    tokens: Sequence[Sequence[int]]
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.tokens or min(map(len, self.tokens)) < 3:
            raise InvalidInput(
                "training needs sequences of at least three tokens; found a shorter one or none"
            )

    def draw(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """`count` sequences, padded with zeros on the right, and where they are real.

        Both (count, T), int64 and bool.
        """
        weights = torch.ones(len(self.tokens)) if self.weights is None else self.weights
        chosen = [
            self.tokens[index]
            for index in torch.multinomial(weights, count, True, generator=generator).tolist()
        ]
        length = max(map(len, chosen))
        padded = torch.tensor([[*sequence, *[0] * (length - len(sequence))] for sequence in chosen])
        return padded, torch.arange(length) < torch.tensor([[len(sequence)] for sequence in chosen])


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


class EagleTraining:
    """A training under way.

    target: a transformers Llama, which stays as it is. module: the drafter, from `new_drafter`.
    """

    def __init__(self, target: Any, module: EagleModule, sequences: Sequences, recipe: EagleRecipe) -> None:
        self.module, self.done = module, 0
        self._target, self._sequences, self._recipe = target, sequences, recipe
        # Precise and apart from the target's own, whose gradients nobody needs.
        self._head = target.get_output_embeddings().weight.detach().float()
        self._trained = [weight for weight in module.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(self._trained, lr=recipe.learning_rate, betas=_BETAS)

    def step(self) -> tuple[float, float]:
        """One update; returns both losses before it: of the features, and of the laws in nats per token."""
        recipe, device = self._recipe, self._head.device
        seed = (recipe.seed << 32) + self.done
        tokens, is_real = (
            drawn.to(device)
            for drawn in self._sequences.draw(recipe.batch_size, Generator().manual_seed(seed))
        )
        with torch.no_grad():
            features = self._target.base_model(input_ids=tokens, use_cache=False).last_hidden_state.float()
        noise = torch.rand(features.shape, generator=Generator(device).manual_seed(seed), device=device) - 0.5
        noisy = features + noise * recipe.noise * 512 / tokens.shape[1]
        regression, law = losses(self.module, self._head, tokens, (features, noisy), is_real)
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(self.done, recipe)
        self._optimizer.zero_grad()
        (regression + recipe.law_weight * law).backward()
        torch.nn.utils.clip_grad_value_(self._trained, recipe.clip)
        self._optimizer.step()
        self.done += 1
        return float(regression.detach()), float(law.detach())

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: plain values and tensors."""
        return {
            "recipe": asdict(self._recipe),
            "done": self.done,
            "module": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint was made. Raises InvalidInput when it was made with another recipe."""
        if state["recipe"] != asdict(self._recipe):
            raise InvalidInput(
                f"the checkpoint was made with {state['recipe']}; asked for {asdict(self._recipe)}"
            )
        self.module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]


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


def _schedule(step: int, recipe: EagleRecipe) -> float:
    """Share of the peak learning rate: a linear warm-up, then a cosine."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return _FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))
