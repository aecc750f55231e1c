"""Models small enough to know everything about, and the laws that they should produce."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig

from resispec.decode import Decoder
from resispec.models import (
    Eagle3Module,
    EagleModel,
    EagleModule,
    Pair,
    TransformersModel,
    build_drafter,
    build_llama,
    save_model,
    usual_taps,
)
from resispec.trees import from_child_counts
from resispec.verifiers import get_verifier


class ToyTokenizer:
    """Characters are tokens."""

    def __init__(self, eos_token_id: int | None = None) -> None:
        self.eos_token_id = eos_token_id

    def encode(self, text: str) -> list[int]:
        return [int(character) for character in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(str, token_ids))


class TableModel:
    """A bigram model: the next token's logits are a row of a table.

    Counts the tokens that it forwards.
    """

    def __init__(self, logits: Tensor, context: int = 4096) -> None:
        self.logits, self.vocab_size, self.context = logits, logits.shape[1], context
        self.device = torch.device("cpu")
        self.forwarded: list[list[int]] = []

    def session(self, capacity: int, drafted: int = 0) -> TableSession:
        return TableSession(self, capacity, drafted)

    def head(self, features: Tensor) -> Tensor:
        return features


class TableSession:
    """Checks what a real cache would silently get wrong: mask widths, depths, capacities."""

    def __init__(self, model: TableModel, capacity: int, drafted: int) -> None:
        self.model, self.capacity, self.drafted = model, capacity, drafted
        self.clear()

    def clear(self) -> None:
        self.length, self.depths = 0, torch.empty(0, dtype=torch.int64)

    def extend(self, tokens: Tensor) -> Tensor:
        self.length, self.depths = self.length + len(tokens), self.depths[:0]
        assert self.length <= self.capacity
        return self._forward(tokens)

    def forward(self, tokens: Tensor, depths: Tensor, visible: Tensor) -> Tensor:
        so_far = visible.shape[1] - len(tokens)  # 0 starts a step
        known = torch.cat((self.depths[:so_far], depths))
        assert visible.shape == (len(tokens), len(known)) and len(known) <= self.drafted
        for row, depth in zip(visible, depths, strict=True):
            # one token at every depth above
            assert known[row].sort().values.tolist() == list(range(int(depth) + 1))
        self.depths = known
        return self._forward(tokens)

    def _forward(self, tokens: Tensor) -> Tensor:
        self.model.forwarded.append(tokens.tolist())
        return self.model.logits[tokens]

    def keep(self, rows: Tensor) -> None:
        assert self.depths[rows].tolist() == list(range(len(rows)))  # a path, in order
        self.length, self.depths = self.length + len(rows), self.depths[:0]
        assert self.length <= self.capacity


def table_pair(vocab: int = 3, seed: int = 0, gap: float = 1.0, eos: int | None = None) -> Pair:
    """A random bigram target and a draft whose logits differ from it by noise of scale `gap`."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(vocab, vocab, generator=generator, dtype=torch.float64)
    noise = torch.randn(vocab, vocab, generator=generator, dtype=torch.float64)
    return Pair(TableModel(target), TableModel(target + gap * noise), ToyTokenizer(eos))


def same_everywhere() -> Pair:
    """A pair whose laws do not depend on the context, so every step has the same expectation."""
    models = table_pair(vocab=6, seed=5)
    p, q = (model.logits[:1].expand(6, 6) for model in (models.target, models.draft))
    return Pair(TableModel(p), TableModel(q), ToyTokenizer())


def sequence_law(
    model: TableModel, first: int, length: int, temperature: float
) -> dict[tuple[int, ...], float]:
    """The probability of every continuation of `first`, by the chain rule."""
    rows = torch.softmax(model.logits / temperature, -1)
    law = {}
    for tokens in itertools.product(range(model.vocab_size), repeat=length):
        pairs = itertools.pairwise((first, *tokens))
        law[tokens] = float(torch.stack([rows[now, following] for now, following in pairs]).prod())
    return law


def tiny_llama(vocab: int = 64, layers: int = 2, seed: int = 0) -> TransformersModel:
    """An untrained Llama with grouped-query attention, scaled up to laws far from uniform."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = build_llama(
            vocab_size=vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
            eos_token_id=None,
        )  # fmt: skip
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6)
    return TransformersModel(module)


def tiny_eagle(vocab: int = 64, hidden: int = 32, bias: bool = True, seed: int = 0) -> EagleModule:
    """An untrained EAGLE drafter with grouped-query attention, scaled up for unlike predictions."""
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=hidden * 3 // 2,
        num_hidden_layers=1,
        num_attention_heads=hidden // 8 or 2, num_key_value_heads=hidden // 16 or 1,
        max_position_embeddings=256,
    )  # fmt: skip
    module = build_drafter(EagleModule, config, bias, seed=seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.mul_(2 if "layers" in name else 1)
    return module.eval()


def tiny_eagle3(token_ids: tuple[int, ...], vocab: int = 64, hidden: int = 32) -> Eagle3Module:
    """An untrained EAGLE-3 drafter for `tiny_llama(layers=4)`."""
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=hidden * 3 // 2,
        num_hidden_layers=1,
        num_attention_heads=hidden // 8, num_key_value_heads=hidden // 16,
        max_position_embeddings=256,
    )  # fmt: skip
    module = build_drafter(Eagle3Module, config, 32, usual_taps(4), torch.tensor(token_ids), seed=1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            generator = torch.Generator().manual_seed(len(name))
            scale = (
                torch.rand(parameter.shape, generator=generator) + 0.5 if parameter.ndim == 1 else 2
            )
            parameter.mul_(scale)
    return module.eval()


def eagle_pair(vocab: int = 64) -> Pair:
    """A tiny Llama with an untrained EAGLE drafter."""
    return Pair(tiny_llama(vocab), EagleModel(tiny_eagle(vocab=vocab)), ToyTokenizer())


def eagle3_pair(
    token_ids: tuple[int, ...] = tuple(range(0, 64, 3)), vocab: int = 64, seed: int = 0
) -> Pair:
    """A tiny Llama of four layers with an untrained EAGLE-3 drafter."""
    drafter = EagleModel(tiny_eagle3(token_ids, vocab))
    return Pair(
        tiny_llama(vocab, layers=4, seed=seed).tapping(drafter.taps), drafter, ToyTokenizer()
    )


def save_tiny_pair(
    folder: Path, words: tuple[str, ...] = ("target", "draft"), layers: int = 2
) -> None:
    """Write model folders, in transformers' own layout, that share a byte-level tokenizer.

    The first model has the seed 0, the next ones have the next seeds.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = {
        "special_tokens": ["<eos>"],
        "initial_alphabet": list("abcdefgh"),
        "show_progress": False,
    }
    trainer = trainers.BpeTrainer(vocab_size=64, **options)
    tokenizer.train_from_iterator(["abc def gh " * 9], trainer)
    for number, word in enumerate(words):
        module = tiny_llama(layers=layers, seed=number).module
        save_model(module, tokenizer, folder / word, eos_token="<eos>")


def save_prompts(folder: Path, count: int) -> None:
    """Write `folder/prompts.jsonl`, documents that `save_tiny_pair`'s tokenizer reads."""
    lines = [
        json.dumps({"id": f"p{index}", "text": "abc def gh " * 3 + "abcdefgh"[index % 8]})
        for index in range(count)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")


UNEVEN = from_child_counts([[3], [1, 0, 2], [1]])


def generate(pair, drafter, sampling, seed=0, verifier="standard", prompt=(0,), **options):
    generator = torch.Generator(pair.target.device).manual_seed(seed)
    return Decoder(drafter, get_verifier(verifier)).generate(
        pair, list(prompt), sampling, generator, **options
    )


class MakesFolder:
    """A trap in a pickle: whoever runs what the pickle says makes this folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)
