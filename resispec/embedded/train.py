"""Trains the embedded pair: one tokenizer, a target on text, and a draft on the target's predictions.

Both models see the same windows in the same loop, so the draft learns from logits that the target's own step
computed anyway. Early in training those are poor, but at the end of the cosine schedule the target hardly
moves and the draft follows it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from resispec.embedded.corpus import NAMES, Document, Split, build_corpus, stable_rank
from resispec.embedded.muon import Muon
from resispec.embedded.recipe import Recipe
from resispec.errors import InvalidInput
from resispec.models import build_llama, save_model

EOS = "<|endoftext|>"
EOS_ID = 0
_CLIP = 1.0
_BETAS = (0.9, 0.95)
_FINAL_SHARE = 0.02  # of the peak learning rate, at the end of the cosine


def train_pair(recipe: Recipe, sources: dict[str, bytes], folder: Path) -> dict[str, Any]:
    """Write `target/`, `draft/` and the three prompt files; return facts of the training for the manifest.

    Shows one progress bar. The caller's random state and thread count are as before afterwards.
    """
    started = time.perf_counter()
    with tqdm(total=recipe.steps, unit="step", dynamic_ncols=True) as bar:
        bar.set_description("embedded pair: reading text")
        corpus = build_corpus(sources, recipe.max_chars, recipe.max_files)
        bar.set_description("embedded pair: tokenizer")
        tokenizer = train_tokenizer(corpus, recipe.vocab_size)
        for name in NAMES:
            write_prompts(
                folder / f"{name}.jsonl", choose_prompts(name, corpus[name].held_out, tokenizer, recipe)
            )
        streams = [_stream(corpus[name].training, tokenizer, recipe.window) for name in NAMES]
        prepared = time.perf_counter()
        bar.reset()  # the time left counts steps only
        bar.set_description("embedded pair: training")
        target, draft = build_models(recipe)
        losses = _fit(target, draft, streams, recipe, bar)
    for model, name in ((target, "target"), (draft, "draft")):
        save_model(model, tokenizer, EOS, folder / name)
    seconds = {"prepare_s": round(prepared - started, 1), "train_s": round(time.perf_counter() - prepared, 1)}
    return seconds | losses | {"tokens": recipe.steps * recipe.batch_size * recipe.window}


def train_tokenizer(corpus: dict[str, Split], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of the training texts: any text can be encoded, and decodes to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (document.text for name in NAMES for document in corpus[name].training)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def choose_prompts(
    name: str, documents: list[Document], tokenizer: Tokenizer, recipe: Recipe
) -> list[Document]:
    """Held-out documents long enough to be prompts, no two with the same beginning, in a fixed mixed order.

    Raises InvalidInput when the installation's text gives fewer than `min_prompts`.
    """
    documents = sorted(documents, key=lambda document: stable_rank(document.id))
    chosen: list[Document] = []
    beginnings: set[tuple[int, ...]] = set()
    for document, encoding in zip(
        documents, tokenizer.encode_batch([document.text for document in documents]), strict=True
    ):
        beginning = tuple(encoding.ids[:64])
        if len(encoding.ids) >= recipe.min_prompt_tokens and beginning not in beginnings:
            beginnings.add(beginning)
            chosen.append(document)
    if len(chosen) < recipe.min_prompts:
        raise InvalidInput(
            f"{name}: this installation's text gives {len(chosen)} prompts; {recipe.min_prompts} are needed"
        )
    return chosen[: recipe.num_prompts]


def write_prompts(path: Path, documents: Iterable[Document]) -> None:
    """Write one JSON object a line, with `id` and `text`."""
    with path.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(asdict(document), ensure_ascii=False) + "\n" for document in documents)


def build_models(recipe: Recipe) -> tuple[Any, Any]:
    """A fresh target and draft, seeded by the recipe, in float32."""
    with torch.random.fork_rng(devices=[]):
        # The CPU's only: torch.manual_seed would reseed the devices, too.
        torch.default_generator.manual_seed(recipe.seed)
        target, draft = (
            build_llama(
                vocab_size=recipe.vocab_size, bos_token_id=None, eos_token_id=EOS_ID, **asdict(sizes)
            ).float()
            for sizes in (recipe.target, recipe.draft)
        )
    return target, draft


def _stream(documents: list[Document], tokenizer: Tokenizer, window: int) -> Tensor:
    """All documents one after another, each followed by the end token: (tokens,) int64."""
    encodings = tokenizer.encode_batch([document.text for document in documents])
    tokens = [token for encoding in encodings for token in (*encoding.ids, EOS_ID)]
    stream = torch.tensor(tokens or [EOS_ID])
    repeats = math.ceil((window + 2) / len(stream))  # only a quick trial has less text than one window
    return stream.repeat(repeats)


def _fit(target: Any, draft: Any, streams: list[Tensor], recipe: Recipe, bar: Any) -> dict[str, float]:
    """Train both models; return their mean losses over the last tenth of the steps, in nats per token."""
    optimizers = [
        *_optimizers(target, recipe.target_learning_rate, recipe),
        *_optimizers(draft, recipe.draft_learning_rate, recipe),
    ]
    generator = torch.Generator().manual_seed(recipe.seed)
    history: list[list[float]] = []
    work = partial(_gradients, target, draft, recipe.distillation)
    with _one_thread_each(), ThreadPoolExecutor(recipe.shards) as pool:
        for step in range(recipe.steps):
            windows = _windows(streams, recipe, generator)
            history.append(
                _set_gradients((target, draft), list(pool.map(work, windows.chunk(recipe.shards))))
            )
            list(pool.map(partial(_update, _schedule(step, recipe)), optimizers))
            bar.set_postfix(target=f"{history[-1][0]:.2f}", draft=f"{history[-1][1]:.2f}", refresh=False)
            bar.update()
    last = history[-max(1, recipe.steps // 10) :]
    means = [sum(column) / len(last) for column in zip(*last, strict=True)]
    return {"target_loss_nats": round(means[0], 4), "draft_loss_nats": round(means[1], 4)}


def _optimizers(model: Any, learning_rate: float, recipe: Recipe) -> list[torch.optim.Optimizer]:
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
        others, lr=learning_rate, betas=_BETAS, weight_decay=recipe.weight_decay, fused=True
    )
    parts = [matrices[part :: recipe.shards] for part in range(recipe.shards)]
    optimizers = [adam, *(Muon(part, learning_rate, recipe.weight_decay) for part in parts if part)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = learning_rate
    return optimizers


def _update(share: float, optimizer: torch.optim.Optimizer) -> None:
    """One step at a share of the peak learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share
    optimizer.step()


def _schedule(step: int, recipe: Recipe) -> float:
    """Share of the peak learning rate: a linear warm-up, then a cosine."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return _FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))


def _windows(streams: list[Tensor], recipe: Recipe, generator: torch.Generator) -> Tensor:
    """Random contiguous windows and one token more: (batch_size, window + 1) int64."""
    kinds = torch.multinomial(
        torch.tensor(recipe.mixture), recipe.batch_size, replacement=True, generator=generator
    )
    rows = []
    for kind in kinds.tolist():
        start = int(torch.randint(len(streams[kind]) - recipe.window, (1,), generator=generator))
        rows.append(streams[kind][start : start + recipe.window + 1])
    return torch.stack(rows)


def _gradients(target: Any, draft: Any, distillation: float, windows: Tensor) -> tuple[list[Tensor], Tensor]:
    """Gradients of the target's, then the draft's parameters; both cross-entropies on the text, in nats."""
    inputs, labels = windows[:, :-1], windows[:, 1:].flatten()
    target_logits = target(input_ids=inputs, use_cache=False).logits.flatten(0, 1)
    target_loss = functional.cross_entropy(target_logits, labels)
    target_gradients = torch.autograd.grad(target_loss, list(target.parameters()))
    draft_logits = draft(input_ids=inputs, use_cache=False).logits.flatten(0, 1)
    text_loss = functional.cross_entropy(draft_logits, labels)
    taught = functional.cross_entropy(draft_logits, target_logits.detach().softmax(-1))
    draft_gradients = torch.autograd.grad(
        distillation * taught + (1 - distillation) * text_loss, list(draft.parameters())
    )
    return [*target_gradients, *draft_gradients], torch.stack([target_loss.detach(), text_loss.detach()])


def _set_gradients(models: tuple[Any, Any], shards: list[tuple[list[Tensor], Tensor]]) -> list[float]:
    """Give both models the mean gradient of the shards, clipped; return both losses."""
    parameters = [weight for model in models for weight in model.parameters()]
    for weight, *parts in zip(parameters, *(gradients for gradients, _ in shards), strict=True):
        weight.grad = torch.stack(parts).mean(0)
    for model in models:
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
    return torch.stack([losses for _, losses in shards]).mean(0).tolist()


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
