"""Training of drafters for their targets: EAGLE, EAGLE-3, and distilled drafts.

The optimizer is AdamW, or Muon for all matrices but the head's. Gradients are clipped by value; the
learning rate has a linear warm-up and a cosine. Training is in float32 for every precision of the
target, with frozen embeddings. Every step's randomness follows from the seed and the step's number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW

from recipes.training.checkpoints import BETAS, Training
from recipes.training.muon import Muon
from recipes.training.recipe import MUON, DistillationRecipe, Eagle3Recipe, EagleRecipe
from resispec.errors import InvalidInput
from resispec.models import Eagle3Module, EagleModule, build_drafter, build_llama
from resispec.models.eagle3 import NUM_TAPS, unrolled, usual_taps

_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "hidden_act", "rms_norm_eps", "max_position_embeddings", "bos_token_id", "eos_token_id",
    "rope_parameters",
)  # fmt: skip

_REMEMBERED_BYTES = 5 << 30  # of a target's outputs; a short training needs less


@dataclass(frozen=True)
class Sequences:
    """Training text.

    tokens: S sequences of at least three tokens. weights: (S,); sequences are drawn in proportion
    to them. learnt_from: for each sequence, the place of the first token after which the law is
    learnt, for example of a question's last token; None means 0 for all.
    """

    tokens: Sequence[Sequence[int]]
    weights: Tensor
    learnt_from: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if not self.tokens or min(map(len, self.tokens)) < 3:
            raise InvalidInput("training needs sequences of at least three tokens; found fewer")

    def padded(self, places: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Sequences padded with zeros (count, T) int64, and their learnt places (count, T) bool."""
        rows = [torch.tensor(self.tokens[place]) for place in places]
        tokens = pad_sequence(rows, batch_first=True)
        numbers, firsts = torch.arange(tokens.shape[1]), self.learnt_from or [0] * len(self.tokens)
        is_real = numbers < torch.tensor([[len(row)] for row in rows])
        is_learnt = is_real & (numbers >= torch.tensor([[firsts[place]] for place in places]))
        return tokens.to(device), is_learnt.to(device)


Recipe = EagleRecipe | Eagle3Recipe | DistillationRecipe


def new_training(target: Any, sequences: Sequences, recipe: Recipe) -> DrafterTraining:
    """The training of a new drafter for a transformers Llama, of the kind that the recipe is for.

    Raises InvalidInput as `new_eagle`, `new_eagle3` and `new_draft`.
    """
    if isinstance(recipe, DistillationRecipe):
        return DistillationTraining(target, new_draft(target, sequences, recipe), sequences, recipe)
    if isinstance(recipe, Eagle3Recipe):
        return Eagle3Training(target, new_eagle3(target, sequences, recipe), sequences, recipe)
    return EagleTraining(target, new_eagle(target, recipe.seed), sequences, recipe)


class TargetOutput(NamedTuple):
    """Outputs of a target for a sequence of T tokens, n of which are learnt.

    taps: (T, F), the inputs of the layers that the drafter taps. features: (n, H), after the last
    norm. log_norms: (n,), the logsumexp of the logits after each learnt token. is_draftable: (n,)
    bool, whether the likeliest token after it can be drafted.
    """

    taps: Tensor
    features: Tensor
    log_norms: Tensor
    is_draftable: Tensor


class DrafterTraining(Training):
    """The training of a drafter.

    target: a transformers Llama, which stays as it is. module: the drafter.
    """

    def __init__(
        self, target: Any, module: nn.Module, sequences: Sequences, recipe: Recipe
    ) -> None:
        self._target, self._sequences = target, sequences
        # In float32 and detached from the target's own head, whose gradients nobody needs.
        self._head = target.get_output_embeddings().weight.detach().float()
        self._outputs: dict[int, TargetOutput] = {}
        self._room = _REMEMBERED_BYTES
        weights = {
            name: weight for name, weight in module.named_parameters() if weight.requires_grad
        }
        matrices = {name for name, weight in weights.items() if weight.dim() == 2} - {
            "lm_head.weight"
        }
        muon_names = matrices if recipe.optimizer == MUON else set()
        others = [weight for name, weight in weights.items() if name not in muon_names]
        optimizers: list[torch.optim.Optimizer] = [
            AdamW(others, lr=recipe.learning_rate, betas=BETAS)
        ]
        if muon_names:
            optimizers.append(
                Muon([weights[name] for name in sorted(muon_names)], recipe.learning_rate, 0.0)
            )
        self._trained = list(weights.values())
        data = {
            "tokens": torch.tensor([token for sequence in sequences.tokens for token in sequence]),
            "lengths": torch.tensor(list(map(len, sequences.tokens))),
            "weights": sequences.weights,
        }
        if sequences.learnt_from is not None:
            data["learnt_from"] = torch.tensor(sequences.learnt_from)
        super().__init__(module, recipe, optimizers, {"target": target.state_dict(), "data": data})

    @abstractmethod
    def _losses(self, places: Sequence[int]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The minimised loss of the sequences at these places, and the two that are `measured`."""

    @torch.no_grad()
    def _output(self, place: int) -> TargetOutput:
        """Outputs of the target for the sequence at a place.

        The target never changes and costs more than the drafter, so outputs are kept while there is
        room.
        """
        if place in self._outputs:
            return self._outputs[place]
        tokens, is_learnt = self._sequences.padded([place], self._head.device)
        states = self._target.base_model(
            input_ids=tokens, use_cache=False, output_hidden_states=True
        )
        features = states.last_hidden_state[is_learnt].float()
        logits = features @ self._head.T
        taps = [
            states.hidden_states[layer][0].float() for layer in getattr(self.module, "taps", ())
        ]
        is_draftable = torch.isin(logits.argmax(-1), self.module.token_ids)
        columns = torch.cat(taps, -1) if taps else features[:, :0]
        output = TargetOutput(columns, features, logits.logsumexp(-1), is_draftable)
        self._room -= sum(tensor.nbytes for tensor in output)
        if self._room >= 0:
            self._outputs[place] = output
        return output

    @property
    def _seed(self) -> int:
        """The seed of the next step's randomness."""
        return (self.recipe.seed << 32) + self.done

    def _update(self) -> tuple[float, float]:
        weights, generator = self._sequences.weights, Generator().manual_seed(self._seed)
        places = torch.multinomial(
            weights, self.recipe.batch_size, replacement=True, generator=generator
        )
        loss, (first, second) = self._losses(places.tolist())
        self.module.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(self._trained, self.recipe.clip)
        for optimizer in self._optimizers:
            optimizer.step()
        return float(first.detach()), float(second.detach())


# --- EAGLE


def new_eagle(target: Any, seed: int) -> EagleModule:
    """An untrained float32 drafter of a transformers Llama's sizes, device and frozen embeddings.

    Raises InvalidInput when the target is no Llama.
    """
    config = target.config
    if config.model_type != "llama":
        raise InvalidInput(
            f"EAGLE drafters are made for Llama targets; found {config.model_type!r}"
        )
    sizes = {name: getattr(config, name) for name in _SIZES}
    module = build_drafter(EagleModule, type(config)(num_hidden_layers=1, **sizes), True, seed=seed)
    module.embed_tokens.weight.data = target.get_input_embeddings().weight.detach().float().clone()
    module.embed_tokens.weight.requires_grad_(False)
    return module.to(target.device)


class EagleTraining(DrafterTraining):
    """The training of a drafter from `new_eagle` on the next feature, and on its law in nats.

    As published (arXiv 2401.15077): loss = SmoothL1(f', f) + w CE(law(f), law(f')), as means over
    the learnt tokens, with uniform noise on the input features and a frozen head.
    """

    measured = ("feature_loss", "law_loss_nats")

    def _losses(self, places: Sequence[int]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        recipe, head, device = self.recipe, self._head, self._head.device
        tokens, is_learnt = self._sequences.padded(places, device)
        with torch.no_grad():
            features = self._target.base_model(
                input_ids=tokens, use_cache=False
            ).last_hidden_state.float()
        generator = Generator(device).manual_seed(self._seed)
        noise = torch.rand(features.shape, generator=generator, device=device) - 0.5
        inputs = features + noise * recipe.noise * 512 / tokens.shape[1]
        positions = torch.arange(tokens.shape[1] - 1, device=device)[None]
        predicted = self.module(tokens[:, 1:], inputs[:, :-1], positions)[is_learnt[:, 1:]]
        targets = features[:, 1:][is_learnt[:, 1:]]
        law = functional.cross_entropy(predicted @ head.T, (targets @ head.T).softmax(-1))
        regression = functional.smooth_l1_loss(predicted, targets)
        return regression + recipe.law_weight * law, (regression, law)


# --- EAGLE-3


def frequent_tokens(sequences: Sequences, vocab: int, count: int) -> Tensor:
    """The ids (count,) int64, ascending, of the tokens drawn most often; of equal ones the first.

    vocab: the number of the target's tokens. Raises InvalidInput when `count` is greater.
    """
    if count > vocab:
        raise InvalidInput(f"a drafter of {count} tokens was asked for; its target has {vocab}")
    frequencies = torch.zeros(vocab, dtype=torch.float64)
    for tokens, weight in zip(sequences.tokens, sequences.weights.tolist(), strict=True):
        frequencies += weight * torch.bincount(torch.tensor(tokens), minlength=vocab)
    return frequencies.sort(descending=True, stable=True).indices[:count].sort().values


def new_eagle3(target: Any, sequences: Sequences, recipe: Eagle3Recipe) -> Eagle3Module:
    """An untrained EAGLE-3 drafter for a transformers Llama; otherwise as `new_eagle`.

    Its head and the norm before it start as the target's, which a short training never finds by
    itself. Raises InvalidInput when the target has fewer layers than are tapped, and as
    `frequent_tokens`.
    """
    num_layers = target.config.num_hidden_layers
    if num_layers < NUM_TAPS:
        raise InvalidInput(
            f"EAGLE-3 drafters read {NUM_TAPS} layers of their target; found {num_layers}"
        )
    eagle = new_eagle(target, recipe.seed)  # for the target's sizes and embeddings
    token_ids = frequent_tokens(sequences, target.config.vocab_size, recipe.num_draftable)
    sizes = target.config.hidden_size, usual_taps(num_layers), token_ids
    module = build_drafter(Eagle3Module, eagle.config, *sizes, seed=recipe.seed)
    module.embed_tokens = eagle.embed_tokens
    module = module.to(target.device)
    head, norm = target.get_output_embeddings().weight, target.base_model.norm.weight
    module.lm_head.weight.data = head.detach()[module.token_ids].float()
    module.norm.weight.data = norm.detach().float().clone()
    return module


class Eagle3Training(DrafterTraining):
    """The training of a `new_eagle3` drafter to give the target's laws from its layers' inputs.

    As published (arXiv 2503.01840): training-time test, in which every step but the first gets the
    drafter's own outputs of the step before as features, as in drafting. The loss is the sum over
    steps s of decay^s CE. CE is the cross-entropy between the target's law among the drafter's
    tokens and the drafter's law, at tokens after which the target's likeliest token can be drafted.
    The first and last step's are measured.
    """

    measured = ("first_loss_nats", "last_loss_nats")

    def _losses(self, places: Sequence[int]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        tokens, counts = self._sequences.padded(places, self._head.device)
        outputs, module = [self._output(place) for place in places], self.module
        is_draftable = torch.cat([output.is_draftable for output in outputs])
        features = torch.cat([output.features for output in outputs])[is_draftable]
        counts[counts.clone()] = is_draftable
        target_laws = (features @ self._head[module.token_ids].T).softmax(-1)
        taps = pad_sequence([output.taps for output in outputs], batch_first=True)
        losses = eagle3_losses(module, tokens, taps, target_laws, counts, self.recipe.depth)
        loss = torch.stack(
            [self.recipe.decay**number * loss for number, loss in enumerate(losses)]
        ).sum()
        return loss, (losses[0], losses[-1])


def eagle3_losses(
    module: Eagle3Module,
    tokens: Tensor,
    features: Tensor,
    wanted: Tensor,
    counts: Tensor,
    depth: int,
) -> list[Tensor]:
    """The cross-entropy of every step's laws in nats, a mean over the tokens that count.

    tokens: (B, T) int64. features: (B, T, F), the target's. counts: (B, T) bool, whether a token
    counts. wanted: (n, D), the target's laws after the n tokens that count.
    """
    losses, places = [], counts.nonzero()[:, 1]
    for step, hidden in enumerate(unrolled(module, tokens, features, depth)):
        mask = counts[:, 1 + step :]  # the law after the token that a row reads
        logits = module.draft_logits(hidden[mask])
        total = functional.cross_entropy(logits, wanted[places > step], reduction="sum")
        losses.append(total / mask.sum().clamp_min(1))
    return losses


# --- distilled drafts


def new_draft(target: Any, sequences: Sequences, recipe: DistillationRecipe) -> Any:
    """An untrained draft of the most frequent tokens, see `draft_of`.

    Raises InvalidInput as `frequent_tokens`.
    """
    ids = frequent_tokens(sequences, target.config.vocab_size, recipe.num_draftable)
    return draft_of(target, recipe.layers, ids)


def draft_of(target: Any, layers: Sequence[int], token_ids: Tensor) -> Any:
    """A Llama of some of the target's layers, whose head has only the rows of drafted tokens.

    Its embeddings are the target's and stay frozen; all weights are in float32 and on the target's
    device. token_ids: (D,) int64, the target's ids of the head's rows, which the draft has, too.
    """
    config = target.config
    sizes = {name: getattr(config, name) for name in _SIZES} | {"num_hidden_layers": len(layers)}
    with torch.random.fork_rng(devices=[]):  # all fresh weights are replaced
        draft: Any = build_llama(tie_word_embeddings=False, **sizes)
    body, source = draft.model, target.base_model
    body.embed_tokens.load_state_dict(source.embed_tokens.state_dict())
    body.norm.load_state_dict(source.norm.state_dict())
    for layer, number in zip(body.layers, layers, strict=True):
        layer.load_state_dict(source.layers[number].state_dict())
    draft.lm_head = nn.Linear(config.hidden_size, len(token_ids), bias=False)
    draft.lm_head.weight.data = target.get_output_embeddings().weight.detach()[token_ids].clone()
    draft.register_buffer("token_ids", token_ids)
    body.embed_tokens.weight.requires_grad_(False)
    return draft.float().to(target.device)


class DistillationTraining(DrafterTraining):
    """The training of a draft from `new_draft` on its target's laws.

    The loss is the cross-entropy between the target's law, not renormalised among the draft's
    tokens, and the draft's law. The overlap of the two laws is also measured: the sum over tokens
    of the lesser probability, which is how often one draw of the draft is accepted. In the last
    `overlap_steps` the loss is 1 - overlap.
    """

    measured = ("law_loss_nats", "overlap")

    def _losses(self, places: Sequence[int]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        tokens, is_learnt = self._sequences.padded(places, self._head.device)
        outputs, draft = [self._output(place) for place in places], self.module
        logits = torch.cat([output.features for output in outputs]) @ self._head[draft.token_ids].T
        target_law = (logits - torch.cat([output.log_norms for output in outputs])[:, None]).exp()
        hidden = draft.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        law = draft.lm_head(hidden[is_learnt]).log_softmax(-1)
        cross_entropy = -(target_law * law).sum(-1).mean()
        overlap = torch.minimum(target_law, law.exp()).sum(-1).mean()
        is_late = self.done >= self.recipe.steps - self.recipe.overlap_steps
        loss = 1 - overlap if is_late else cross_entropy
        return loss, (cross_entropy, overlap)
