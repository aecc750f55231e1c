"""Speed, as ratios within one run: `python -m experiments.bench [--results FOLDER] [--prompts N]`.

Our autoregressive loop and our chain decoder against `generate` and `generate(assistant_model=...)` of transformers, on the same
pair, prompts, temperature and number of tokens; every prompt is decoded by all of them in turn, so that a busy machine slows
all alike. Then the split of a d5b3 step: what is not a forward of one of the two models is our own cost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from experiments.provenance import device_name
from resispec.core import Draws
from resispec.decode import Decoder, Generation, Sampling
from resispec.drafters import DraftModel, NoDraft
from resispec.embedded import EmbeddedDataset, load_pair
from resispec.models import Model, Pair, Session
from resispec.record import write_atomically
from resispec.timing import now
from resispec.topology import chain, complete
from resispec.verifiers import get_verifier

NUM_DRAFTED = 4
NEW_TOKENS = 64
PROMPT_TOKENS = 64
SAMPLING = Sampling(temperature=1.0, max_new_tokens=NEW_TOKENS, max_length=256, ignore_eos=True)


@dataclass
class Timed:
    """Seconds of one contestant, prompt by prompt."""

    name: str
    decode: Callable[[list[int], int], Any]
    seconds: list[float] = field(default_factory=list)


class TimedModel:
    """A model whose forwards and head add to `seconds`."""

    def __init__(self, inner: Model) -> None:
        self.inner, self.seconds = inner, 0.0
        self.vocab_size, self.context, self.device = inner.vocab_size, inner.context, inner.device

    def session(self, capacity: int) -> Session:
        """A session of the inner model whose forwards are timed."""
        session = self.inner.session(capacity)
        session.forward = self._timed(session.forward)  # type: ignore[method-assign]
        return session

    def head(self, features: Tensor) -> Tensor:
        """The inner model's head, timed."""
        return self._timed(self.inner.head)(features)

    def _timed(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def timed(*arguments: Tensor) -> Tensor:
            started = now(self.device)
            result = function(*arguments)
            self.seconds += now(self.device) - started
            return result

        return timed


def ours(pair: Pair, decoder: Decoder) -> Callable[[list[int], int], Generation]:
    """Our loop as a contestant."""
    device = pair.target.device
    return lambda prompt, seed: decoder.generate(pair, prompt, SAMPLING, torch.Generator(device).manual_seed(seed))


def theirs(pair: Pair, **options: Any) -> Callable[[list[int], int], Tensor]:
    """`generate` of transformers, with every default switched off that would change the law or the length."""
    target: Any = pair.target

    def decode(prompt: list[int], seed: int) -> Tensor:
        torch.manual_seed(seed)
        ids = torch.tensor([prompt], device=target.device)
        settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}
        lengths = {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}
        return target.module.generate(ids, attention_mask=torch.ones_like(ids), **settings, **lengths, **options)

    return decode


def contest(contestants: list[Timed], prompts: list[list[int]], device: torch.device) -> None:
    """Every prompt by every contestant in turn; the first prompt once more beforehand, to warm up."""
    for index, prompt in enumerate(tqdm([prompts[0], *prompts], desc="bench", unit="prompt")):
        for contestant in contestants:
            started = now(device)
            contestant.decode(prompt, index)
            if index:
                contestant.seconds.append(now(device) - started)


def step_split(pair: Pair, prompts: list[list[int]]) -> dict[str, float]:
    """Milliseconds of a d5b3 step in forwards of the target, of the draft, and in everything else."""
    assert pair.draft is not None
    target, draft = TimedModel(pair.target), TimedModel(pair.draft)
    decoder = Decoder(DraftModel(complete(5, 3), Draws.IID), get_verifier("standard"))
    decode = ours(Pair(target, draft, pair.tokenizer), decoder)
    steps, total = 0, 0.0
    for index, prompt in enumerate(tqdm([prompts[0], *prompts], desc="step split", unit="prompt")):
        if index == 1:
            target.seconds = draft.seconds = total = 0.0
            steps = 0
        before = target.seconds, draft.seconds
        result = decode(prompt, index)
        # Forwards of the prompt count on neither side: they are measured, and taken off again with prefill_s below.
        steps, total = steps + len(result.num_emitted), total + result.decode_s
        prefill = target.seconds - before[0] + draft.seconds - before[1]
        assert prefill <= result.decode_s + result.prefill_s
    return {"target_ms": 1e3 * target.seconds / steps, "draft_ms": 1e3 * draft.seconds / steps, "step_ms": 1e3 * total / steps}
