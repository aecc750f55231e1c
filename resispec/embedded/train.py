"""Trains the embedded pair: one tokenizer, a target on text, and a draft on the target's predictions.

Both models see the same windows in the same loop, so the draft learns from logits that the target's own step computed anyway.
Early in training those are poor, but at the end of the cosine schedule the target hardly moves and the draft follows it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from resispec.embedded.corpus import NAMES, Document, Split, build_corpus, stable_rank
from resispec.errors import InvalidInput
from resispec.models import build_llama, save_model

EOS = "<|endoftext|>"
EOS_ID = 0
_CLIP = 1.0
_BETAS = (0.9, 0.95)
_FINAL_SHARE = 0.02  # of the peak learning rate, at the end of the cosine


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama. Embeddings are tied: at this size a second matrix would be half of the model."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the pair, apart from the source text and the versions of the libraries.

    mixture: share of windows from each data set, in the order of `NAMES`. context: tokens of a window. batch_size: windows.
    distillation: weight of the target's law, against the text's own next token, in the draft's loss.
    max_chars: training text of one data set at most. max_files: source files at most, for quick trials.
    max_threads: more CPU threads do not help matrices this small, and hurt where a container may use fewer cores than it sees.
    """

    seed: int = 0
    vocab_size: int = 2048
    target: Shape = Shape(192, 576, 4, 4, 2)
    draft: Shape = Shape(64, 160, 1, 2, 2)
    steps: int = 1200
    batch_size: int = 4
    context: int = 256
    warmup_steps: int = 60
    target_learning_rate: float = 3e-3
    draft_learning_rate: float = 6e-3
    weight_decay: float = 0.05
    distillation: float = 1.0
    mixture: tuple[float, float, float] = (0.2, 0.4, 0.4)
    max_chars: int = 2_500_000
    max_files: int | None = None
    num_prompts: int = 256
    min_prompts: int = 200
    min_prompt_tokens: int = 96
    max_threads: int = 4


def train_pair(recipe: Recipe, sources: dict[str, bytes], folder: Path) -> dict[str, Any]:
    """Write `target/`, `draft/` and the three prompt files into `folder`; return what is worth remembering of the training.

    Shows one progress bar. The caller's random state and thread count are as before afterwards.
    """
    started = time.perf_counter()
    with _threads(recipe.max_threads), tqdm(total=recipe.steps, unit="step", dynamic_ncols=True) as bar:
        bar.set_description("embedded pair: reading text")
        corpus = build_corpus(sources, recipe.max_chars, recipe.max_files)
        bar.set_description("embedded pair: tokenizer")
        tokenizer = train_tokenizer(corpus, recipe.vocab_size)
        for name in NAMES:
            write_prompts(folder / f"{name}.jsonl", choose_prompts(name, corpus[name].held_out, tokenizer, recipe))
        streams = [_stream(corpus[name].training, tokenizer, recipe.context) for name in NAMES]
        prepared = time.perf_counter()
        bar.reset()  # the time left counts steps only
        bar.set_description("embedded pair: training")
        target, draft = build_models(recipe)
        losses = _fit(target, draft, streams, recipe, bar)
    for model, name in ((target, "target"), (draft, "draft")):
        save_model(model, tokenizer, EOS, folder / name)
    seconds = {"prepare_s": round(prepared - started, 1), "train_s": round(time.perf_counter() - prepared, 1)}
    return seconds | losses | {"tokens": recipe.steps * recipe.batch_size * recipe.context, "threads": recipe.max_threads}


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


def choose_prompts(name: str, documents: list[Document], tokenizer: Tokenizer, recipe: Recipe) -> list[Document]:
    """Held-out documents long enough to be prompts, no two with the same beginning, in a fixed mixed order.

    Raises InvalidInput when the installation's text gives fewer than `min_prompts`.
    """
    documents = sorted(documents, key=lambda document: stable_rank(document.id))
    chosen: list[Document] = []
    beginnings: set[tuple[int, ...]] = set()
    for document, encoding in zip(documents, tokenizer.encode_batch([document.text for document in documents]), strict=True):
        beginning = tuple(encoding.ids[:64])
        if len(encoding.ids) >= recipe.min_prompt_tokens and beginning not in beginnings:
            beginnings.add(beginning)
            chosen.append(document)
    if len(chosen) < recipe.min_prompts:
        raise InvalidInput(f"{name}: this installation's text gives {len(chosen)} prompts; {recipe.min_prompts} are needed")
    return chosen[: recipe.num_prompts]


def write_prompts(path: Path, documents: Iterable[Document]) -> None:
    """Write one JSON object a line, with `id` and `text`."""
    with path.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(asdict(document), ensure_ascii=False) + "\n" for document in documents)


def build_models(recipe: Recipe) -> tuple[Any, Any]:
    """A fresh target and draft, seeded by the recipe, in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.seed)  # the CPU's only: torch.manual_seed would reseed the devices too
        target, draft = (
            build_llama(vocab_size=recipe.vocab_size, bos_token_id=None, eos_token_id=EOS_ID, **asdict(shape)).float()
            for shape in (recipe.target, recipe.draft)
        )
    return target, draft


def _stream(documents: list[Document], tokenizer: Tokenizer, context: int) -> Tensor:
    """All documents one after another, each followed by the end token: (tokens,) int64."""
    encodings = tokenizer.encode_batch([document.text for document in documents])
    stream = torch.tensor([token for encoding in encodings for token in (*encoding.ids, EOS_ID)])
    repeats = math.ceil((context + 2) / len(stream))  # only a quick trial has less text than one window
    return stream.repeat(repeats)


def _fit(target: Any, draft: Any, streams: list[Tensor], recipe: Recipe, bar: Any) -> dict[str, float]:
    """Train both models; return their mean loss over the last tenth of the steps, in nats per token."""
    optimizers = [
        _optimizer(target, recipe.target_learning_rate, recipe.weight_decay),
        _optimizer(draft, recipe.draft_learning_rate, recipe.weight_decay),
    ]
    generator = torch.Generator().manual_seed(recipe.seed)
    history: list[tuple[float, float]] = []
    for step in range(recipe.steps):
        for optimizer in optimizers:
            _set_rate(optimizer, _schedule(step, recipe))
        history.append(_step(target, draft, optimizers, _windows(streams, recipe, generator), recipe.distillation))
        bar.update()
        bar.set_postfix(target=f"{history[-1][0]:.2f}", draft=f"{history[-1][1]:.2f}", refresh=False)
    last = history[-max(1, recipe.steps // 10) :]
    means = [sum(column) / len(last) for column in zip(*last, strict=True)]
    return {"target_loss_nats": round(means[0], 4), "draft_loss_nats": round(means[1], 4)}


def _optimizer(model: Any, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    gains = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW([group | {"peak": learning_rate} for group in groups], lr=learning_rate, betas=_BETAS, fused=True)


def _set_rate(optimizer: torch.optim.Optimizer, share: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share


def _schedule(step: int, recipe: Recipe) -> float:
    """Share of the peak learning rate: a linear warm-up, then a cosine."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return _FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))


def _windows(streams: list[Tensor], recipe: Recipe, generator: torch.Generator) -> Tensor:
    """Random contiguous windows with one token more than the context: (batch_size, context + 1) int64."""
    kinds = torch.multinomial(torch.tensor(recipe.mixture), recipe.batch_size, replacement=True, generator=generator)
    rows = []
    for kind in kinds.tolist():
        start = int(torch.randint(len(streams[kind]) - recipe.context, (1,), generator=generator))
        rows.append(streams[kind][start : start + recipe.context + 1])
    return torch.stack(rows)


def _step(target: Any, draft: Any, optimizers: list[Any], windows: Tensor, distillation: float) -> tuple[float, float]:
    """One update of both models; return their cross-entropies on the text, in nats per token."""
    inputs, labels = windows[:, :-1], windows[:, 1:].flatten()
    target_logits = target(input_ids=inputs, use_cache=False).logits.flatten(0, 1)
    target_loss = functional.cross_entropy(target_logits, labels)
    draft_logits = draft(input_ids=inputs, use_cache=False).logits.flatten(0, 1)
    text_loss = functional.cross_entropy(draft_logits, labels)
    taught = functional.cross_entropy(draft_logits, target_logits.detach().softmax(-1))
    for model, optimizer, loss in (
        (target, optimizers[0], target_loss),
        (draft, optimizers[1], distillation * taught + (1 - distillation) * text_loss),
    ):
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return target_loss.item(), text_loss.item()


@contextmanager
def _threads(limit: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, limit))
    try:
        yield
    finally:
        torch.set_num_threads(before)
