"""The one decode loop, step by step until a limit; `resispec.step` has what a step does.

Autoregressive decoding drafts nothing, plain speculative decoding a chain, SpecInfer a complete tree:
configurations of `Decoder`, not other loops. Batch size is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Generator

from resispec.drafters.base import Drafter
from resispec.errors import InvalidInput
from resispec.models import Pair, Warp
from resispec.step import Step, Stepper
from resispec.timing import Stopwatch, measuring, now
from resispec.verifiers import Verifier, as_verifier

__all__ = ["Decoder", "Generation", "Sampling", "Step"]

ROUND_TO = 16
"""Caches hold multiples of so many tokens, so that prompts of nearly equal length share one."""


@dataclass(frozen=True)
class Sampling:
    """How to sample and when to stop: at the first limit, or at an end-of-sequence token unless `ignore_eos`.

    temperature: of both models, 0 is greedy. top_p, top_k, min_p: of both models, too, see `Warp`.
    max_new_tokens: tokens returned. max_length: prompt and returned tokens together.
    Raises InvalidInput for a setting that `Warp` does not allow or a limit below one.
    """

    temperature: float
    max_new_tokens: int
    max_length: int
    ignore_eos: bool = False
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @cached_property
    def warp(self) -> Warp:
        """How the logits of target and draft become laws."""
        return Warp(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p)

    def __post_init__(self) -> None:
        _ = self.warp  # which checks it
        for name, limit in (("max_new_tokens", self.max_new_tokens), ("max_length", self.max_length)):
            if type(limit) is not int or limit < 1:
                raise InvalidInput(f"{name} must be at least 1; found {limit!r}; allowed: whole numbers")

    def num_returned(self, prompt_length: int) -> int:
        """The most tokens that both limits allow after a prompt."""
        return min(self.max_new_tokens, self.max_length - prompt_length)

    def cut(self, tokens: list[int], most: int, ends: Collection[int]) -> tuple[tuple[int, ...], str]:
        """Of all emitted tokens those to return, and why decoding stopped.

        most: as `num_returned` says. ends: the tokens that end a sequence.
        """
        end = next((place for place, token in enumerate(tokens[:most]) if token in ends), None)
        if end is not None:
            return tuple(tokens[: end + 1]), "eos"
        if len(tokens) < most:
            return tuple(tokens), "stopped"
        return tuple(tokens[:most]), "max_new_tokens" if most == self.max_new_tokens else "max_length"


@dataclass(frozen=True)
class Generation:
    """What was decoded from one prompt.

    tokens: those returned. num_emitted: tokens of every step, also those past a limit or an end of sequence,
    which are not returned. stop_reason: "eos", "max_new_tokens", "max_length", or "stopped" by `on_step`.
    prefill_s: seconds in forwards of the prompt. decode_s: seconds in everything after them.
    """

    tokens: tuple[int, ...]
    num_emitted: tuple[int, ...]
    stop_reason: str
    prefill_s: float
    decode_s: float


@dataclass(frozen=True)
class Decoder:
    """A drafter and a verifier make a decoder; the pair is given when it decodes.

    verifier: a verifier, or a sibling rule, which is then applied from the root down.
    cache_length: positions that the cache may hold, the tree's included (Sequoia's M); no limit when None.
    """

    drafter: Drafter
    verifier: Verifier
    cache_length: int | None = None
    _kept: list[tuple[Any, Stepper]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "verifier", as_verifier(self.verifier))

    @torch.inference_mode()
    def generate(
        self,
        pair: Pair,
        prompt: list[int],
        sampling: Sampling,
        generator: Generator,
        stopwatch: Stopwatch | None = None,
        on_step: Callable[[Step], bool | None] | None = None,
    ) -> Generation:
        """Continue a prompt of at least one token; randomness comes from `generator`, on the target's device.

        stopwatch: gets the parts "draft", "target", "verify" and "commit" of all steps, and those that are
        named inside of them. on_step: called after every step; decoding stops where it returns True.
        Raises InvalidInput when the prompt or the tree does not fit, FloatingPointError when a law is NaN.
        """
        self.check(pair, len(prompt), sampling)
        device, most = pair.target.device, sampling.num_returned(len(prompt))
        ends = frozenset[int]() if sampling.ignore_eos else pair.end_token_ids
        started = now(device)
        stepper = self._stepper(pair, sampling.warp, self.capacity(len(prompt), sampling))
        stepper.begin(prompt, generator)
        decoding = now(device)
        tokens: list[int] = []
        num_emitted: list[int] = []
        with measuring(stopwatch):
            # The end of the sequence may lie before the last token of a step.
            while len(tokens) < most and (not tokens or ends.isdisjoint(tokens[-num_emitted[-1] :])):
                step = stepper.step()
                tokens += step.verdict.tokens
                num_emitted.append(step.verdict.num_emitted)
                if on_step is not None and on_step(step):
                    break
                del step  # its laws, so that those of the next step take their place
        finished = now(device)
        stepper.end(generator)
        returned, reason = sampling.cut(tokens, most, ends)
        return Generation(returned, tuple(num_emitted), reason, decoding - started, finished - decoding)

    def sampling(
        self, prompt_length: int, max_new_tokens: int, warp: Warp, ignore_eos: bool = False
    ) -> Sampling:
        """Settings for a prompt of this length with no limit but that of new tokens."""
        # A tree must fit behind the prompt, even where fewer tokens are asked for.
        max_length = prompt_length + max(max_new_tokens, self.drafter.topology.num_levels)
        return Sampling(
            max_new_tokens=max_new_tokens, max_length=max_length, ignore_eos=ignore_eos, **asdict(warp)
        )

    def capacity(self, prompt_length: int, sampling: Sampling) -> int:
        """Committed tokens that the caches have room for, in multiples of `ROUND_TO`."""
        # The last step may commit as many tokens past the limit as the tree has levels.
        most = prompt_length + sampling.num_returned(prompt_length) + self.drafter.topology.num_levels
        return -(-most // ROUND_TO) * ROUND_TO

    def _stepper(self, pair: Pair, warp: Warp, capacity: int) -> Stepper:
        """The stepper for a pair and caches of this capacity; kept, since prompts are often alike."""
        wanted = (pair, warp, capacity)
        if not self._kept or self._kept[0][0] != wanted:
            self._kept.clear()  # before the next one's caches are made
            stepper = Stepper(self.drafter, self.verifier, pair, warp, capacity)
            self._kept.append((wanted, stepper))
        return self._kept[0][1]

    def check(self, pair: Pair, prompt_length: int, sampling: Sampling) -> None:
        """Raise InvalidInput unless a prompt of this length and this decoder's trees fit the limits."""
        levels, length = self.drafter.topology.num_levels, sampling.max_length
        if prompt_length < 1:
            raise InvalidInput("a prompt holds at least one token; found an empty one")
        if length <= levels:
            raise InvalidInput(
                f"no prompt fits a tree of {levels} levels in max_length {length}; "
                f"a prompt of {prompt_length} tokens needs max_length {prompt_length + levels} or more"
            )
        if prompt_length + levels > length:
            raise InvalidInput(
                f"a prompt of {prompt_length} tokens and a tree of {levels} levels cannot fit "
                f"max_length {length}; allowed: prompts of at most {length - levels} tokens"
            )
        context = min(model.context for model in (pair.target, pair.draft) if model is not None)
        # The last step starts below max_length and its deepest node lies levels - 1 positions after its root.
        if length + levels - 2 > context:
            most = context - levels + 2
            allowed = f"max_length up to {most}" if most > levels else "a tree of fewer levels"
            raise InvalidInput(
                f"max_length {length} with a tree of {levels} levels exceeds the models' context of "
                f"{context} positions; allowed: {allowed}"
            )
        positions = self.positions(prompt_length, sampling)
        if self.cache_length is not None and positions > self.cache_length:
            nodes, new = self.drafter.topology.num_nodes, sampling.num_returned(prompt_length)
            raise InvalidInput(
                f"a prompt of {prompt_length} tokens, {new} new ones and a tree of {nodes} nodes take "
                f"{positions} cached positions; cache_length allows {self.cache_length}"
            )

    def positions(self, prompt_length: int, sampling: Sampling) -> int:
        """The most positions that decoding caches.

        The last step starts one token short of the limit, and its root is not cached yet.
        """
        return prompt_length + sampling.num_returned(prompt_length) - 2 + self.drafter.topology.num_nodes
