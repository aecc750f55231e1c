"""Training of EAGLE and EAGLE-3 drafters for their targets.

AdamW, gradients clipped by value, a linear warm-up and a cosine; in float32 whatever the target's precision,
with the embeddings frozen. Every step's randomness follows from the seed and the step's number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from resispec.errors import InvalidInput
from resispec.models import (
    Eagle3Module,
    EagleModule,
    build_eagle,
    build_eagle3,
    unrolled,
    usual_taps,
)
from resispec.models.eagle3 import NUM_TAPS
from resispec.training.checkpoints import BETAS, Training
from resispec.training.recipe import Eagle3Recipe, EagleRecipe

_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "hidden_act", "rms_norm_eps", "max_position_embeddings", "bos_token_id", "eos_token_id",
    "rope_parameters",
)  # fmt: skip


@dataclass(frozen=True)
class Sequences:
    """Training text.

    tokens: S sequences of at least three tokens. weights: (S,), in proportion to which they are drawn.
    """

    tokens: Sequence[Sequence[int]]
    weights: Tensor

    def __post_init__(self) -> None:
        if not self.tokens or min(map(len, self.tokens)) < 3:
            raise InvalidInput("training needs sequences of at least three tokens; found fewer")

    def draw(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """`count` sequences, padded with zeros, and where they are real: (count, T) int64 and bool."""
        places = torch.multinomial(self.weights, count, True, generator=generator).tolist()
        rows = [torch.tensor(self.tokens[place]) for place in places]
        padded = pad_sequence(rows, batch_first=True)
        return padded, torch.arange(padded.shape[1]) < torch.tensor([[len(row)] for row in rows])


def new_training(target: Any, sequences: Sequences, recipe: EagleRecipe | Eagle3Recipe) -> DrafterTraining:
    """The training of a new drafter for a transformers Llama, of the kind that the recipe is for.

    Raises InvalidInput as `new_eagle` and `new_eagle3`.
    """
    if isinstance(recipe, Eagle3Recipe):
        return Eagle3Training(target, new_eagle3(target, sequences, recipe), sequences, recipe)
    return EagleTraining(target, new_eagle(target, recipe.seed), sequences, recipe)


class DrafterTraining(Training):
    """A training under way of a drafter.

    target: a transformers Llama, which stays as it is. module: the drafter.
    """

    def __init__(
        self, target: Any, module: nn.Module, sequences: Sequences, recipe: EagleRecipe | Eagle3Recipe
    ) -> None:
        self._target, self._sequences = target, sequences
        # Precise and apart from the target's own, whose gradients nobody needs.
        self._head = target.get_output_embeddings().weight.detach().float()
        self._trained = [weight for weight in module.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(self._trained, lr=recipe.learning_rate, betas=BETAS)
        data = {
            "tokens": torch.tensor([token for sequence in sequences.tokens for token in sequence]),
            "lengths": torch.tensor(list(map(len, sequences.tokens))),
            "weights": sequences.weights,
        }
        super().__init__(module, recipe, [self._optimizer], {"target": target.state_dict(), "data": data})

    @abstractmethod
    def _losses(self, tokens: Tensor, is_real: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The loss that is minimised, and the two that are measured. tokens: (B, T) int64; is_real: bool."""

    @property
    def _seed(self) -> int:
        """The seed of the next step's randomness."""
        return (self.recipe.seed << 32) + self.done

    def _update(self) -> tuple[float, float]:
        generator = Generator().manual_seed(self._seed)
        drawn = self._sequences.draw(self.recipe.batch_size, generator)
        loss, (first, second) = self._losses(*(part.to(self._head.device) for part in drawn))
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(self._trained, self.recipe.clip)
        self._optimizer.step()
        return float(first.detach()), float(second.detach())


# --- EAGLE


def new_eagle(target: Any, seed: int) -> EagleModule:
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
    """The training of a drafter from `new_eagle`: the next feature, and the law that it gives, in nats.

    As published (arXiv 2401.15077): loss = SmoothL1(f', f) + w CE(law(f), law(f')), uniform noise on the
    input features, the head frozen.
    """

    measured = ("feature_loss", "law_loss_nats")

    def _losses(self, tokens: Tensor, is_real: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        recipe, device = self.recipe, tokens.device
        with torch.no_grad():
            features = self._target.base_model(input_ids=tokens, use_cache=False).last_hidden_state.float()
        generator = Generator(device).manual_seed(self._seed)
        noise = torch.rand(features.shape, generator=generator, device=device) - 0.5
        noisy = features + noise * recipe.noise * 512 / tokens.shape[1]
        regression, law = eagle_losses(self.module, self._head, tokens, (features, noisy), is_real)
        return regression + recipe.law_weight * law, (regression, law)


def eagle_losses(
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


# --- EAGLE-3


def frequent_tokens(sequences: Sequences, vocab: int, count: int) -> Tensor:
    """The ids (count,) int64, ascending, of the tokens that are drawn most often; of equals the first.

    vocab: tokens of the target. Raises InvalidInput when there are not so many.
    """
    if count > vocab:
        raise InvalidInput(f"a drafter of {count} tokens was asked for; its target has {vocab}")
    drawn = torch.zeros(vocab, dtype=torch.float64)
    for tokens, weight in zip(sequences.tokens, sequences.weights.tolist(), strict=True):
        drawn += weight * torch.bincount(torch.tensor(tokens), minlength=vocab)
    return drawn.sort(descending=True, stable=True).indices[:count].sort().values


def new_eagle3(target: Any, sequences: Sequences, recipe: Eagle3Recipe) -> Eagle3Module:
    """An untrained drafter for a transformers Llama: otherwise as `new_eagle`.

    Its head and the norm before it start as the target's, which a short training never finds by itself.
    Raises InvalidInput when the target has fewer layers than are tapped, and as `frequent_tokens`.
    """
    num_layers = target.config.num_hidden_layers
    if num_layers < NUM_TAPS:
        raise InvalidInput(f"EAGLE-3 drafters read {NUM_TAPS} layers of their target; found {num_layers}")
    plain = new_eagle(target, recipe.seed)  # with its sizes, and its embeddings
    token_ids = frequent_tokens(sequences, target.config.vocab_size, recipe.num_draftable)
    taps = usual_taps(num_layers)
    module = build_eagle3(plain.config, target.config.hidden_size, taps, token_ids, recipe.seed)
    module.embed_tokens = plain.embed_tokens
    module = module.to(target.device)
    head, norm = target.get_output_embeddings().weight, target.base_model.norm.weight
    module.lm_head.weight.data = head.detach()[module.token_ids].float()
    module.norm.weight.data = norm.detach().float().clone()
    return module


class Eagle3Training(DrafterTraining):
    """The training of a drafter from `new_eagle3` on what enters its target's layers, to give its laws.

    As published (arXiv 2503.01840): training-time test, in which every step but the first gets the drafter's
    own outputs of the step before as features, as drafting does. The loss is the sum over steps s of decay^s
    CE, between the target's law among the drafter's tokens and the drafter's, where the target's likeliest
    token is one of them. Measured are the first step's and the last one's.
    """

    measured = ("first_loss_nats", "last_loss_nats")

    def _losses(self, tokens: Tensor, is_real: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        recipe, module = self.recipe, self.module
        with torch.no_grad():
            states = self._target.base_model(input_ids=tokens, use_cache=False, output_hidden_states=True)
            logits = states.last_hidden_state.float() @ self._head.T
            features = torch.cat([states.hidden_states[layer] for layer in module.taps], -1).float()
        steps = eagle3_losses(module, tokens, features, logits, is_real, recipe.depth)
        loss = torch.stack([recipe.decay**number * loss for number, loss in enumerate(steps)]).sum()
        return loss, (steps[0], steps[-1])


def eagle3_losses(
    module: Eagle3Module, tokens: Tensor, features: Tensor, logits: Tensor, is_real: Tensor, depth: int
) -> list[Tensor]:
    """The cross-entropy of every step's laws in nats, a mean over the tokens that count.

    tokens: (B, T) int64. features: (B, T, F) and logits: (B, T, V), the target's. is_real: (B, T) bool.
    """
    losses = []
    counts = is_real & module.t2d[logits.argmax(-1)]
    wanted = logits[..., module.token_ids].softmax(-1)
    for step, hidden in enumerate(unrolled(module, tokens, features, depth)):
        law_at = slice(1 + step, None)  # the law behind the token that a row reads
        mask = counts[:, law_at]
        drafted = module.draft_logits(hidden[mask])
        total = functional.cross_entropy(drafted, wanted[:, law_at][mask], reduction="sum")
        losses.append(total / mask.sum().clamp_min(1))
    return losses
