"""Rescoring: the logits that a model has for tokens which somebody else emitted.

Sequences of similar length are forwarded together, padded on the right, where a causal model does
not look. A batch is forwarded in pieces of its columns, with the model's own cache and head, so
that a large vocabulary and a long output fit into memory. Any causal language model of transformers
works, sliding windows included.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from referee.conditions import check_emitted
from referee.transcripts import TOKENS, Transcript
from resispec.errors import InvalidInput, NoVerdict
from resispec.models.base import check_one_side
from resispec.models.causal import TransformersModel, switches_in
from resispec.models.checkpoint import (
    check_device,
    digest_of,
    dtypes_of,
    end_token_ids,
    found_device,
    read_checkpoint,
)
from resispec.models.grid import precision_of
from resispec.models.kv_cache import cache_argument, check_window
from resispec.models.linear import quicken_again
from resispec.models.loading import check_tokenizers
from resispec.models.pair import Pair
from resispec.sampling import Warp

MAX_LOGITS = 2**24
"""The most logits that are held at a time, 64 MiB in float32."""
MAX_POSITIONS = 8192
"""The most tokens of a batch, padding included."""
SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The sampling settings that a model's generation_config.json may give."""


@dataclass(frozen=True)
class Stretch:
    """K consecutive emitted tokens of one sequence, with the logits that a model has for each.

    row: the sequence's number. prompt: (P,) int64. outputs: (T,) int64, all emitted tokens of the
    sequence. first: the index in `outputs` of the first of the K tokens. logits: (K, V) float32.
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

    @property
    def where(self) -> tuple[Tensor, Tensor]:
        """Row and position of the K tokens, (K,) int64 each, on the CPU."""
        position = torch.arange(self.first, self.first + len(self.logits))
        return torch.full_like(position, self.row), position


class Scorer:
    """A causal language model of transformers that rescores.

    eos_token_ids: the tokens at which engines stop: those that the model's files name, and
    `eos_token_id`, usually the tokenizer's, at which many engines stop as well. unknown_ends: those
    of them that the model has no logit for, which end nothing. name: the model's, by which rows may
    name it; by default the one that it was loaded by, "" if it is not known. defaults: the sampling
    settings of the model's generation_config.json, which some engines apply unasked. precision: the
    model's dtype in words, such as "float16". switches: lengths at which the model's frequencies
    change, see `switches_in`.

    Raises InvalidInput for a Llama with a window, which its cache would read and no layer.
    """

    def __init__(
        self, module: Any, eos_token_id: int | None = None, name: str | None = None
    ) -> None:
        self.module = module.eval()
        config = module.config.get_text_config()
        check_window(config.name_or_path or "the target", config)
        self.name: str = (module.config.name_or_path or "") if name is None else name
        self.vocab_size: int = config.vocab_size
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        self.device: torch.device = module.device
        self.precision = precision_of(module)
        ends = sorted({*end_token_ids(module), eos_token_id} - {None})
        self.eos_token_ids = tuple(end for end in ends if 0 <= end < self.vocab_size)
        self.unknown_ends = tuple(end for end in ends if end not in self.eos_token_ids)
        settings = {name: getattr(module.generation_config, name, None) for name in SETTINGS}
        self.defaults = {name: value for name, value in settings.items() if value is not None}
        self.switches = switches_in(config)
        self._cache_name = cache_argument(module.forward)
        takes_count = "logits_to_keep" in signature(module.forward).parameters
        self._last_only = {"logits_to_keep": 1} if takes_count else {}

    @cached_property
    def weights(self) -> str:
        """A digest of the weights as they were when it was first asked for."""
        return digest_of(self.module.state_dict())

    @torch.inference_mode()
    def after(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Logits (B, V) float32 after the last of tokens (B, C), and the cache with the tokens.

        cache: that of the tokens before, None if there are none.
        """
        output = self._forward(tokens, cache, **self._last_only)
        return output.logits[:, -1].float(), getattr(output, self._cache_name)

    def _forward(self, tokens: Tensor, cache: Any, **options: Any) -> Any:
        """The module's output for tokens (B, C) behind those of a cache, None if there are none.

        Raises NoVerdict if it does not fit into the device's memory.
        """
        cached = {self._cache_name: cache}
        try:
            return self.module(input_ids=tokens, use_cache=True, **cached, **options)
        except torch.OutOfMemoryError as error:
            rows, columns = tokens.shape
            raise NoVerdict(
                f"a forward of {rows} x {columns} tokens by {self.name or 'the model'} in "
                f"{self.precision} does not fit into the memory of {self.device}; allowed: what "
                "fits, as with --dtype bfloat16, or --device cpu"
            ) from error

    @torch.inference_mode()
    def pieces(self, tokens: Tensor, edges: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """First column, logits (B, C, V) float32 after tokens (B, W), by piece between `edges`."""
        tokens, cache = tokens.to(self.device), None
        if edges[0] > 0:
            _, cache = self.after(tokens[:, : edges[0]], None)
        for start, end in pairwise(edges):
            output = self._forward(tokens[:, start:end], cache)
            cache = getattr(output, self._cache_name)
            yield start, output.logits.float()


def rescore(
    scorers: Sequence[Scorer], transcripts: Sequence[Transcript]
) -> Iterator[tuple[Stretch, ...]]:
    """Every emitted token once, in stretches of rows in any order; a `Stretch` for each scorer.

    scorers: the target's, then the draft's if there is one, on one device. transcripts: rows that
    `check_fit` allows.

    Raises NoVerdict for the first stretch whose logits are not numbers, see `check_numbers`, and
    where memory does not suffice.
    """
    vocab_size = max(scorer.vocab_size for scorer in scorers)
    switches = [switch for scorer in scorers for switch in scorer.switches]
    for rows in _batches(
        [sum(map(len, transcript.written)) - 1 for transcript in transcripts], switches
    ):
        sequences = [transcripts[row].written for row in rows]
        inputs = [torch.tensor((*prompt, *outputs[:-1])) for prompt, outputs in sequences]
        tokens = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        columns = max(1, MAX_LOGITS // (len(rows) * vocab_size))
        first, width = min(len(prompt) for prompt, _ in sequences) - 1, tokens.shape[1]
        pieces = [
            scorer.pieces(tokens, (*range(first, width, columns), width)) for scorer in scorers
        ]
        ids = [
            [torch.tensor(part, device=scorers[0].device) for part in sequence]
            for sequence in sequences
        ]
        for blocks in zip(*pieces, strict=True):
            column, num_columns = blocks[0][0], blocks[0][1].shape[1]
            for place, (row, (prompt, outputs)) in enumerate(zip(rows, ids, strict=True)):
                begin = len(prompt) - 1
                low, high = max(column, begin), min(column + num_columns, begin + len(outputs))
                if low < high:
                    scores = [logits[place, low - column : high - column] for _, logits in blocks]
                    check_numbers(scores, scorers, transcripts[row].place)
                    yield tuple(
                        Stretch(row, prompt, outputs, low - begin, logits) for logits in scores
                    )


def _batches(widths: Sequence[int], switches: Sequence[int] = ()) -> Iterator[list[int]]:
    """Batches of rows of similar width, as many as MAX_POSITIONS allows with padding, at least one.

    switches: rows on both sides of such a length are never in one batch, as the longest decides for
    all.
    """
    rows: list[int] = []
    for row in sorted(range(len(widths)), key=widths.__getitem__):
        is_apart = any(widths[rows[0]] <= switch < widths[row] for switch in switches if rows)
        if rows and (is_apart or (len(rows) + 1) * widths[row] > MAX_POSITIONS):
            yield rows
            rows = []
        rows.append(row)
    yield rows


def check_numbers(logits: Sequence[Tensor], scorers: Sequence[Scorer], place: str) -> None:
    """Raise NoVerdict, which begins with `place`, unless every token's logits make a law.

    logits: of each scorer, (K, V) for K tokens. The largest logit of every token must be finite,
    which it is not if one is NaN or +inf, or if all are -inf. Single logits of -inf are allowed: a
    model rules such tokens out, for instance those that pad its vocabulary.
    """
    for role, scorer, scores in zip(("target", "draft"), scorers, logits, strict=False):
        is_number = scores.amax(-1).isfinite()
        if not is_number.all():
            raise NoVerdict(
                f"{place}: the {role} in {scorer.precision} gives NaN or infinite logits for "
                f"{int((~is_number).sum())} of {len(is_number)} tokens; allowed: finite ones, so "
                "take another dtype (float32 and bfloat16 hold the largest numbers) or undamaged "
                "weights"
            )


def check_fit(scorers: Sequence[Scorer], transcripts: Sequence[Transcript]) -> None:
    """Raise InvalidInput if there are no rows, or for one that a model cannot have read or written.

    Nor have engines emitted outputs that mostly begin with their own prompts, or that are filled up
    behind an end of sequence. The line about a row begins with its place.
    """
    if not transcripts:
        raise InvalidInput("there are no transcripts; at least one row is needed")
    check_emitted(transcripts, scorers[0].eos_token_ids)
    models = zip(("target", "draft"), scorers, strict=False)
    for transcript, (role, scorer) in product(transcripts, models):
        place, sequence = transcript.place, transcript.written
        for name, tokens in zip(TOKENS, sequence, strict=True):
            if (largest := max(tokens)) >= scorer.vocab_size:
                raise InvalidInput(
                    f"{place}: {name} holds {largest}; allowed: ids below {scorer.vocab_size}, the "
                    f"{role}'s vocabulary (is it the {role} that they were written with?)"
                )
        counts = f"{len(sequence[0])} prompt and {len(sequence[1])} output tokens"
        length = sum(map(len, sequence)) - 1
        check_one_side(scorer.switches, len(sequence[0]), length, f"{place}: {counts}", role)
        if scorer.context is not None and length > scorer.context:
            raise InvalidInput(
                f"{place}: {counts}; allowed: {scorer.context + 1} together, since the {role} "
                f"attends to {scorer.context}"
            )


def load_scorers(
    names: Sequence[str], device: str = "auto", dtype: str = "float32"
) -> list[Scorer]:
    """Scorers of a target, and of a draft if there is one, from hub names or folders.

    device: a torch device, or auto: CUDA if there is a device. dtype: as for
    `resispec.models.load_pair`. Raises InvalidInput when a model cannot be found, the device or
    dtype is unknown, or the tokenizers differ.
    """
    device = found_device(device)
    check_device(device)
    models = [
        read_checkpoint(name, None, precision, device)
        for name, precision in zip(names, dtypes_of(dtype), strict=False)
    ]
    scorers = [Scorer(module, tokenizer.eos_token_id) for module, tokenizer in models]
    size = min(scorer.vocab_size for scorer in scorers)
    check_tokenizers(names, [tokenizer for _, tokenizer in models], size)
    return scorers


def pair_scorers(pair: Pair) -> list[Scorer]:
    """Scorers of a pair's target, and of its draft if that is a language model of its own."""
    models = [model for model in (pair.target, pair.draft) if isinstance(model, TransformersModel)]
    for model in models:
        quicken_again(model.module)  # weights may have been merged since it was loaded
    # rows name a pair, and not the folders of its models
    return [Scorer(model.module, pair.tokenizer.eos_token_id, "") for model in models]


def penalised(stretch: Stretch, settings: Warp) -> Tensor:
    """The stretch's logits (K, V) after the penalties.

    The repetition penalty is first, as in transformers; then come OpenAI's penalties, over emitted
    tokens alone, as vLLM applies them (`vllm/model_executor/layers/utils.py`, `apply_penalties`).
    """
    scores = stretch.logits
    if settings.repetition_penalty != 1:
        emitted, is_past = _emitted(stretch)
        # The penalty counts a token once, so a token of the prompt may fill the places that are not
        # past.
        context = (
            stretch.prompt.expand(len(is_past), -1),
            torch.where(is_past, emitted, stretch.prompt[0]),
        )
        penalty = RepetitionPenaltyLogitsProcessor(float(settings.repetition_penalty))
        scores = penalty(torch.cat(context, 1), scores)
    if settings.presence_penalty or settings.frequency_penalty:
        counts = emitted_counts(stretch, scores.shape[-1])
        scores = (
            scores - settings.frequency_penalty * counts - settings.presence_penalty * (counts > 0)
        )
    return scores


def emitted_counts(stretch: Stretch, vocab_size: int) -> Tensor:
    """Counts (K, V) float32 of the emitted tokens before each of the K, without the prompt."""
    emitted, is_past = _emitted(stretch)
    counts = torch.zeros(len(is_past), vocab_size, device=emitted.device)
    return counts.scatter_add_(1, emitted.expand(len(is_past), -1), is_past.float())


def _emitted(stretch: Stretch) -> tuple[Tensor, Tensor]:
    """The outputs (L,) up to the stretch's end, and which are before each of K tokens (K, L)."""
    emitted = stretch.outputs[: stretch.first + len(stretch.logits)]
    places = torch.arange(len(emitted), device=emitted.device)
    return emitted, places < places[stretch.first :, None]
