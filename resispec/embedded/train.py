"""Trains one embedded model: a target on text, or a draft on the laws that its teacher gives to that text."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from resispec.embedded.muon import Muon
from resispec.embedded.recipe import ModelRecipe
from resispec.embedded.text import EOS, EOS_ID, read_streams, read_tokenizer
from resispec.models import build_llama, load_pair, save_model

_CLIP = 1.0
_BETAS = (0.9, 0.95)
_FINAL_SHARE = 0.02  # of the peak learning rate, at the end of the cosine


def train_model(
    recipe: ModelRecipe, name: str, text: Path, teacher: Path | None, folder: Path
) -> dict[str, Any]:
    """Write the model into `folder`; return facts of the training for the manifest.

    Shows a progress bar with the model's name. The caller's random state and thread count are as before
    afterwards.

    text: the folder of `make_text`. teacher: the folder of the recipe's teacher, where it has one.
    """
    started = time.perf_counter()
    tokenizer, streams = read_tokenizer(text), read_streams(text)
    model = build_model(recipe, tokenizer.get_vocab_size())
    teaching: Any = None if teacher is None else read_module(teacher)
    with tqdm(total=recipe.steps, unit="step", dynamic_ncols=True, desc=f"embedded {name}") as bar:
        loss = _fit(model, teaching, streams, recipe, bar)
    save_model(model, tokenizer, EOS, folder)
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "text_loss_nats": loss,
        "tokens": recipe.steps * recipe.batch_size * recipe.window,
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }


def build_model(recipe: ModelRecipe, vocab_size: int) -> Any:
    """A fresh model, seeded by the recipe, in float32."""
    with torch.random.fork_rng(devices=[]):
        # The CPU's only: torch.manual_seed would reseed the devices, too.
        torch.default_generator.manual_seed(recipe.seed)
        sizes = asdict(recipe.sizes)
        return build_llama(vocab_size=vocab_size, bos_token_id=None, eos_token_id=EOS_ID, **sizes).float()


def read_module(folder: Path) -> Any:
    """The transformers model of a folder that `train_model` wrote."""
    pair: Any = load_pair(str(folder), None)
    return pair.target.module


def _fit(model: Any, teacher: Any, streams: list[Tensor], recipe: ModelRecipe, bar: Any) -> float:
    """Train a model; return its mean loss on the text over the last tenth of the steps, in nats per token."""
    optimizers = _optimizers(model, recipe)
    generator = torch.Generator().manual_seed(recipe.seed)
    # Only a quick trial has less text than one window.
    streams = [stream.repeat(math.ceil((recipe.window + 2) / len(stream))) for stream in streams]
    history: list[float] = []
    work = partial(_gradients, model, teacher)
    with _one_thread_each(), ThreadPoolExecutor(recipe.shards) as pool:
        for step in range(recipe.steps):
            windows = _windows(streams, recipe, generator)
            history.append(_set_gradients(model, list(pool.map(work, windows.chunk(recipe.shards)))))
            list(pool.map(partial(_update, _schedule(step, recipe)), optimizers))
            bar.set_postfix(loss=f"{history[-1]:.2f}", refresh=False)
            bar.update()
    last = history[-max(1, recipe.steps // 10) :]
    return round(sum(last) / len(last), 4)


def _optimizers(model: Any, recipe: ModelRecipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embeddings and the gains of the norms.

    Muon's matrices are split into as many parts as there are shards, which run in parallel.
    """
    rest = {
        id(weight)
        for weight in (
            *model.get_input_embeddings().parameters(),
            *(w for w in model.parameters() if w.dim() == 1),
        )
    }
    matrices = [weight for weight in model.parameters() if id(weight) not in rest]
    others = [weight for weight in model.parameters() if id(weight) in rest]
    adam = torch.optim.AdamW(
        others, lr=recipe.learning_rate, betas=_BETAS, weight_decay=recipe.weight_decay, fused=True
    )
    parts = [matrices[part :: recipe.shards] for part in range(recipe.shards)]
    optimizers = [adam, *(Muon(part, recipe.learning_rate, recipe.weight_decay) for part in parts if part)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = recipe.learning_rate
    return optimizers


def _update(share: float, optimizer: torch.optim.Optimizer) -> None:
    """One step at a share of the peak learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share
    optimizer.step()


def _schedule(step: int, recipe: ModelRecipe) -> float:
    """Share of the peak learning rate: a linear warm-up, then a cosine."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return _FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))


def _windows(streams: list[Tensor], recipe: ModelRecipe, generator: torch.Generator) -> Tensor:
    """Random contiguous windows and one token more: (batch_size, window + 1) int64."""
    kinds = torch.multinomial(
        torch.tensor(recipe.mixture), recipe.batch_size, replacement=True, generator=generator
    )
    rows = []
    for kind in kinds.tolist():
        start = int(torch.randint(len(streams[kind]) - recipe.window, (1,), generator=generator))
        rows.append(streams[kind][start : start + recipe.window + 1])
    return torch.stack(rows)


def _gradients(model: Any, teacher: Any, windows: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """Gradients of the model's parameters, and its cross-entropy on the text in nats.

    With a teacher the gradients are those of the cross-entropy with the teacher's laws.
    """
    inputs, labels = windows[:, :-1], windows[:, 1:].flatten()
    logits = model(input_ids=inputs, use_cache=False).logits.flatten(0, 1)
    loss = text_loss = functional.cross_entropy(logits, labels)
    if teacher is not None:
        with torch.no_grad():
            laws = teacher(input_ids=inputs, use_cache=False).logits.flatten(0, 1).softmax(-1)
        loss = functional.cross_entropy(logits, laws)
    return torch.autograd.grad(loss, list(model.parameters())), text_loss.detach()


def _set_gradients(model: Any, shards: list[tuple[tuple[Tensor, ...], Tensor]]) -> float:
    """Give the model the mean gradient of the shards, clipped; return its loss on the text."""
    for weight, *parts in zip(model.parameters(), *(gradients for gradients, _ in shards), strict=True):
        weight.grad = torch.stack(parts).mean(0)
    torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
    return float(torch.stack([loss for _, loss in shards]).mean())


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """One intra-operation thread, so that only the shards run in parallel.

    Threads inside an operation wait for each other at every one of thousands of small products: one busy
    neighbour on a core made a step ten times slower. Shards meet once a step, and results do not depend on
    the core count.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
