"""Trains an EAGLE-3 drafter on what enters its target's layers, to give the target's laws.

As published (arXiv 2503.01840): training-time test, in which every step but the first gets the drafter's own
outputs of the step before as features, as drafting does. The loss is the sum over steps s of decay^s CE,
between the target's law among the drafter's tokens and the drafter's, where the target's likeliest token is
one of them. Embeddings are frozen; the rest is as in `DrafterTraining`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from resispec.errors import InvalidInput
from resispec.models import Eagle3Module, build_eagle3, unrolled, usual_taps
from resispec.models.eagle3 import NUM_TAPS
from resispec.training.base import DrafterTraining, Sequences
from resispec.training.eagle import new_drafter
from resispec.training.recipe import Eagle3Recipe


def frequent_tokens(sequences: Sequences, vocab: int, count: int) -> Tensor:
    """The ids (count,) int64, ascending, of the tokens that are drawn most often; of equals the first.

    vocab: tokens of the target. Raises InvalidInput when there are not so many.
    """
    if count > vocab:
        raise InvalidInput(f"a drafter of {count} tokens was asked for; its target has {vocab}")
    drawn = torch.zeros(vocab, dtype=torch.float64)
    for tokens, weight in zip(sequences.tokens, sequences.shares.tolist(), strict=True):
        drawn += weight * torch.bincount(torch.tensor(tokens), minlength=vocab)
    return drawn.sort(descending=True, stable=True).indices[:count].sort().values


def new_eagle3(target: Any, sequences: Sequences, recipe: Eagle3Recipe) -> Eagle3Module:
    """An untrained drafter for a transformers Llama: otherwise as `new_drafter`.

    Its head and the norm before it start as the target's, which a short training never finds by itself.
    Raises InvalidInput when the target has fewer layers than are tapped, and as `frequent_tokens`.
    """
    num_layers = target.config.num_hidden_layers
    if num_layers < NUM_TAPS:
        raise InvalidInput(f"EAGLE-3 drafters read {NUM_TAPS} layers of their target; found {num_layers}")
    plain = new_drafter(target, recipe.seed)  # with its sizes, and its embeddings
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
    """The training of a drafter from `new_eagle3`: of its laws in the first and in the last step."""

    measured = ("first_loss_nats", "last_loss_nats")

    def _losses(self, tokens: Tensor, is_real: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        recipe, module = self.recipe, self.module
        with torch.no_grad():
            states = self._target.base_model(input_ids=tokens, use_cache=False, output_hidden_states=True)
            logits = states.last_hidden_state.float() @ self._head.T
            features = torch.cat([states.hidden_states[layer] for layer in module.taps], -1).float()
        steps = law_losses(module, tokens, features, logits, is_real, recipe.depth)
        loss = torch.stack([recipe.decay**number * loss for number, loss in enumerate(steps)]).sum()
        return loss, (steps[0], steps[-1])


def law_losses(
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
