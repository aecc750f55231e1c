"""Training of embedded models: targets on text, drafts on their teacher's laws, EAGLE drafters."""

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from recipes.embedded.recipe import DrafterRecipe, ModelRecipe
from recipes.embedded.text import EOS, EOS_ID, read_text
from recipes.training.checkpoints import BETAS, Training
from recipes.training.drafters import Sequences, new_training
from recipes.training.muon import Muon
from resispec.embedded import NAMES
from resispec.kept import CHECKPOINT
from resispec.models import build_llama, load_pair, save_eagle, save_model


def train_model(recipe: ModelRecipe, folder: Path) -> dict[str, Any]:
    """Train the model and write it into `folder`; return facts of the training for the manifest.

    The training shows a progress bar and goes on from the checkpoint in `folder`, if there is one.
    It leaves the caller's random state and thread count as they were.
    """
    teacher = None if recipe.teacher is None else read_module(recipe.teacher.folder())
    tokenizer, streams = read_text(recipe.text.folder())
    model = build_model(recipe, tokenizer.get_vocab_size())
    training = ModelTraining(model, teacher, streams, recipe)
    parameters = sum(weight.numel() for weight in model.parameters())
    kind = "target" if teacher is None else "draft"
    with one_thread_each():
        training.run(f"embedded {kind}, {parameters / 1e6:.2g}m", folder / CHECKPOINT)
    save_model(model, tokenizer, folder, eos_token=EOS)
    return {
        **training.last_losses(),
        "tokens": recipe.steps * recipe.batch_size * recipe.window,
        "parameters": parameters,
    }


def train_drafter(recipe: DrafterRecipe, folder: Path) -> dict[str, Any]:
    """Train the EAGLE drafter and write it into `folder`; otherwise as `train_model`.

    It learns from the text in windows of one length; every data set is drawn as often as for the
    target.
    """
    target, window = recipe.target, recipe.target.window
    tokens: list[list[int]] = []
    weights: list[float] = []
    for stream, share in zip(read_text(target.text.folder())[1], target.mixture, strict=True):
        starts = range(0, len(stream) - 2, window)
        tokens += [stream[start : start + window].tolist() for start in starts]
        weights += [share / max(1, len(starts))] * len(starts)
    with one_thread_each():  # sums, and so the result, must not depend on the number of cores
        sequences = Sequences(tokens, torch.tensor(weights))
        training = new_training(read_module(target.folder()), sequences, recipe.training)
        training.run("embedded drafter", folder / CHECKPOINT)
    save_eagle(training.module, folder)
    return training.last_losses()


def build_model(recipe: ModelRecipe, vocab_size: int) -> Any:
    """A fresh model, seeded by the recipe, in float32."""
    with torch.random.fork_rng(devices=[]):
        # Only the CPU's generator: torch.manual_seed would reseed the devices, too.
        torch.default_generator.manual_seed(recipe.seed)
        sizes = asdict(recipe.sizes)
        return build_llama(
            vocab_size=vocab_size, bos_token_id=None, eos_token_id=EOS_ID, **sizes
        ).float()


def read_module(folder: Path) -> Any:
    """The transformers model of a folder that `train_model` wrote."""
    pair: Any = load_pair(str(folder), None)
    return pair.target.module


class ModelTraining(Training):
    """The training of one model, to be run within `one_thread_each`.

    Muon trains the layers' matrices, in as many parts as there are shards, which run in parallel.
    AdamW trains the embeddings and the gains of the norms. teacher: a module whose laws are learnt;
    None if the text is learnt. streams: training tokens of every data set, (tokens,) int64.
    """

    measured = ("text_loss_nats",)

    def __init__(
        self, model: Any, teacher: Any, streams: list[Tensor], recipe: ModelRecipe
    ) -> None:
        # Only a quick trial has less text than one window.
        self._streams = [
            stream.repeat(math.ceil((recipe.window + 2) / len(stream))) for stream in streams
        ]
        self._generator = torch.Generator().manual_seed(recipe.seed)
        self._pool = ThreadPoolExecutor(recipe.shards)
        self._teacher = teacher
        embeddings = model.get_input_embeddings().weight
        matrices = [
            weight for weight in model.parameters() if weight.dim() > 1 and weight is not embeddings
        ]
        others = [
            weight for weight in model.parameters() if weight.dim() == 1 or weight is embeddings
        ]
        rate, decay = recipe.learning_rate, recipe.weight_decay
        adam = torch.optim.AdamW(others, lr=rate, betas=BETAS, weight_decay=decay, fused=True)
        parts = filter(None, (matrices[part :: recipe.shards] for part in range(recipe.shards)))
        sources = {"data": dict(zip(NAMES, streams, strict=True))}
        if teacher is not None:
            sources["teacher"] = teacher.state_dict()
        super().__init__(
            model, recipe, [adam, *(Muon(part, rate, decay) for part in parts)], sources
        )

    def _update(self) -> tuple[float]:
        windows = self._windows().chunk(self.recipe.shards)
        gradients, losses = zip(*self._pool.map(self._gradients, windows), strict=True)
        for weight, *shards in zip(self.module.parameters(), *gradients, strict=True):
            weight.grad = torch.stack(shards).mean(0)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), max_norm=1.0)
        list(self._pool.map(lambda optimizer: optimizer.step(), self._optimizers))
        return (float(torch.stack(losses).mean()),)

    def _windows(self) -> Tensor:
        """Random contiguous windows, each with the next token: (batch_size, window + 1) int64."""
        recipe, generator = self.recipe, self._generator
        mixture = torch.tensor(recipe.mixture)
        kinds = torch.multinomial(mixture, recipe.batch_size, replacement=True, generator=generator)
        rows = []
        for stream in (self._streams[kind] for kind in kinds.tolist()):
            start = int(torch.randint(len(stream) - recipe.window, (1,), generator=generator))
            rows.append(stream[start : start + recipe.window + 1])
        return torch.stack(rows)

    def _gradients(self, windows: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Gradients of the model's parameters, and its cross-entropy on the text in nats.

        With a teacher the gradients are those of the cross-entropy with the teacher's laws.
        """
        inputs, labels = windows[:, :-1], windows[:, 1:].flatten()
        logits = self.module(input_ids=inputs, use_cache=False).logits.flatten(0, 1)
        loss = text_loss = functional.cross_entropy(logits, labels)
        if self._teacher is not None:
            with torch.no_grad():
                laws = (
                    self._teacher(input_ids=inputs, use_cache=False)
                    .logits.flatten(0, 1)
                    .softmax(-1)
                )
            loss = functional.cross_entropy(logits, laws)
        return torch.autograd.grad(loss, list(self.module.parameters())), text_loss.detach()

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"generator": self._generator.get_state()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        self._generator.set_state(state["generator"])


@contextmanager
def one_thread_each() -> Iterator[None]:
    """A context with one intra-operation thread, so that only the shards run in parallel.

    Threads inside an operation wait for each other at each of thousands of small products: one busy
    neighbour on a core made a step ten times slower. Shards wait for each other once a step, and
    results do not depend on the core count.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
