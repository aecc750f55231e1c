"""Rescoring: the logits that a model has for tokens which somebody else emitted.

Sequences of like length are forwarded together, padded on the right, where a causal model does not look. The
columns of a batch are forwarded in pieces, with the model's own cache and its own head, so that a large
vocabulary and a long output fit. Any causal language model of transformers will do, sliding windows included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from resispec.errors import InvalidInput
from resispec.models.causal import TransformersModel, check_device, find_dtype
from resispec.models.checkpoint import end_token_ids, read_checkpoint
from resispec.models.pair import Pair
from resispec.models.vocabulary import check_tokenizers

MAX_LOGITS = 2**24
"""Logits that are held at a time, 64 MiB of them in float32."""
MAX_POSITIONS = 8192
"""Tokens of a batch, padding included."""
SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The settings of sampling that a model's generation_config.json may give."""

Written = tuple[tuple[int, ...], tuple[int, ...]]
"""The token ids of a prompt and of an output, neither of them empty."""


@dataclass(frozen=True)
class Stretch:
    """K consecutive emitted tokens of one sequence, with the logits that a model has for each.

    row: which sequence. prompt: (P,) int64. outputs: (T,) int64, all of the sequence's. first: the index in
    `outputs` of the first of the K. logits: (K, V) float32.
    """

    row: int
    prompt: Tensor
    outputs: Tensor
    first: int
    logits: Tensor

    @property
    def tokens(self) -> Tensor:
        """The K tokens, (K,) int64."""
        return self.outputs[self.first : self.first + len(self.logits)]

    def is_past(self, positions: Tensor) -> Tensor:
        """(K, len(positions)) bool: is the output at this index, (J,) int64, before each of the K tokens?"""
        own = torch.arange(self.first, self.first + len(self.logits), device=positions.device)
        return positions < own[:, None]


class Scorer:
    """A causal language model of transformers that rescores.

    eos_token_ids: the tokens at which engines stop: those that the model's files name, and the caller's,
    since many stop at the tokenizer's as well.
    defaults: the settings of sampling in its generation_config.json, which some engines apply unasked.
    """

    def __init__(self, module: Any, eos_token_id: int | None = None) -> None:
        self.module = module.eval()
        config = module.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        self.device: torch.device = module.device
        generation = module.generation_config
        given_too = () if eos_token_id is None else (eos_token_id,)
        self.eos_token_ids = tuple(sorted({*end_token_ids(module), *given_too}))
        given = {name: getattr(generation, name, None) for name in SETTINGS}
        self.defaults = {name: value for name, value in given.items() if value is not None}
        takes_count = "logits_to_keep" in signature(module.forward).parameters
        self._last_only = {"logits_to_keep": 1} if takes_count else {}

    @torch.inference_mode()
    def _pieces(self, batch: _Batch) -> Iterator[tuple[int, Tensor]]:
        """The batch's logits from the first column that counts, as (column, (B, C, V) float32)."""
        tokens, cache = batch.tokens.to(self.device), None
        if batch.edges[0] > 0:
            before = tokens[:, : batch.edges[0]]
            cache = self.module(input_ids=before, use_cache=True, **self._last_only).past_key_values
        for start, end in zip(batch.edges, batch.edges[1:], strict=False):
            output = self.module(input_ids=tokens[:, start:end], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            yield start, output.logits.float()

    def _stretches(self, batch: _Batch) -> Iterator[Stretch]:
        for column, logits in self._pieces(batch):
            for place, (prompt, outputs) in enumerate(batch.sequences):
                begin = len(prompt) - 1
                low, high = max(column, begin), min(column + logits.shape[1], begin + len(outputs))
                if low < high:
                    read, wrote = (torch.tensor(part, device=self.device) for part in (prompt, outputs))
                    own = logits[place, low - column : high - column]
                    yield Stretch(batch.rows[place], read, wrote, low - begin, own)


@dataclass(frozen=True)
class _Batch:
    """Sequences that are forwarded together.

    tokens: (B, W) int64, all but the last of each sequence, padded on the right. edges: the columns between
    which the logits of a piece lie, from the first that counts to W.
    """

    rows: tuple[int, ...]
    sequences: tuple[Written, ...]
    tokens: Tensor
    edges: tuple[int, ...]


def rescore(scorers: Sequence[Scorer], sequences: Sequence[Written]) -> Iterator[tuple[Stretch, ...]]:
    """Every emitted token once, in stretches, in no particular order of rows; one `Stretch` for each scorer.

    sequences: as `check_fit` allows them.
    """
    vocab_size = max(scorer.vocab_size for scorer in scorers)
    for batch in _batches(sequences, vocab_size):
        yield from zip(*(scorer._stretches(batch) for scorer in scorers), strict=True)


def check_fit(scorer: Scorer, sequence: Written, place: str) -> None:
    """Raise InvalidInput, a line that begins with `place`, for what this model cannot read or write."""
    for name, tokens in zip(("prompt_token_ids", "output_token_ids"), sequence, strict=True):
        if (largest := max(tokens)) >= scorer.vocab_size:
            raise InvalidInput(
                f"{place}: {name} holds {largest}; allowed: ids below {scorer.vocab_size}, the model's "
                "vocabulary (is it the model that wrote them?)"
            )
    length = sum(map(len, sequence))
    if scorer.context is not None and length - 1 > scorer.context:
        counts = f"{len(sequence[0])} prompt and {len(sequence[1])} output tokens"
        raise InvalidInput(
            f"{place}: {counts}; allowed: {scorer.context + 1} together, since the model attends to "
            f"{scorer.context}"
        )


def load_scorers(names: Sequence[str], device: str = "auto", dtype: str = "float32") -> list[Scorer]:
    """Models that share a tokenizer, from hub names or folders.

    device: a torch device, or auto: CUDA where there is a device. dtype: a key of `DTYPES`. Raises
    InvalidInput when a model cannot be found, the device or dtype is unknown, or the tokenizers differ.
    """
    device, number = found_device(device), find_dtype(dtype)
    check_device(device)
    read = [read_checkpoint(name, None, number, device) for name in names]
    scorers = [Scorer(module, tokenizer.eos_token_id) for module, tokenizer in read]
    size = min(scorer.vocab_size for scorer in scorers)
    check_tokenizers(names, [tokenizer for _, tokenizer in read], size)
    return scorers


def pair_scorers(pair: Pair) -> list[Scorer]:
    """The target of a pair, and its draft where that is a language model of its own."""
    models = [model for model in (pair.target, pair.draft) if isinstance(model, TransformersModel)]
    return [Scorer(model.module, pair.tokenizer.eos_token_id) for model in models]


def found_device(name: str) -> str:
    """A torch device's name, where auto is CUDA if there is a device, and the CPU otherwise."""
    return name if name != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")


def _batches(sequences: Sequence[Written], vocab_size: int) -> Iterator[_Batch]:
    """Sequences of like length together, as many as MAX_POSITIONS allows, at least one."""
    order = sorted(range(len(sequences)), key=lambda row: [sum(map(len, sequences[row])), row])
    for rows in _parts(order, [sum(map(len, sequences[row])) - 1 for row in order]):
        chosen = tuple(sequences[row] for row in rows)
        width = max(sum(map(len, sequence)) for sequence in chosen) - 1
        tokens = torch.zeros(len(chosen), width, dtype=torch.int64)
        for row, (prompt, outputs) in zip(tokens, chosen, strict=True):
            ids = torch.tensor((*prompt, *outputs[:-1]))
            row[: len(ids)] = ids
        columns = max(1, MAX_LOGITS // (len(chosen) * vocab_size))
        first = min(len(prompt) for prompt, _ in chosen) - 1
        yield _Batch(tuple(rows), chosen, tokens, (*range(first, width, columns), width))


def _parts(order: Iterable[int], widths: Iterable[int]) -> Iterator[list[int]]:
    """Cut rows in ascending order of their widths into batches."""
    rows: list[int] = []
    for row, width in zip(order, widths, strict=True):
        if rows and (len(rows) + 1) * width > MAX_POSITIONS:
            yield rows
            rows = []
        rows.append(row)
    yield rows
