"""The one decode loop, which takes steps until a limit; `resispec.step` holds a single step.

Autoregressive decoding drafts nothing, plain speculative decoding drafts a chain, SpecInfer a
complete tree: all are configurations of `Decoder`, not other loops. Batch size is one.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Generator

from resispec.drafters.base import Drafter
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.models.base import check_one_side
from resispec.models.module_state import evaluating, settings_in
from resispec.sampling import PENALTIES, Sampling, Warp
from resispec.step import Step, Stepper, reading_is_free
from resispec.timing import now
from resispec.verifiers import SiblingRule, Verifier, as_verifier

__all__ = ["Decoder", "Generation", "Sampling", "Step"]

ROUND_TO = 16
"""Cache capacities are multiples of this many tokens: prompts of similar length share a cache."""


@dataclass(frozen=True)
class Generation:
    """The tokens decoded from one prompt, with their steps and times.

    tokens: the returned tokens. num_emitted: the number of tokens that each step emitted, including
    tokens past a limit or an end of sequence, which are not returned. num_drafted: the tokens that
    the target verified in all steps. stop_reason: "eos", "max_new_tokens" or "max_length".
    prefill_s: seconds in forwards of the prompt. decode_s: seconds in everything after that.
    step_s: seconds of each step by the clock of the host, which waits for a step's tokens.
    """

    tokens: tuple[int, ...]
    num_emitted: tuple[int, ...]
    num_drafted: int
    stop_reason: str
    prefill_s: float
    decode_s: float
    step_s: tuple[float, ...]


class Decoder:
    """A decoder is made of a drafter and a verifier; `generate` is given the pair of models.

    verifier: a verifier, or a sibling rule, which is then applied from the root down.
    cache_length: most positions that the cache may hold, with the tree's (Sequoia's M); None for no
    limit.

    It keeps its last stepper, with the caches, as prompts are often alike, until a program changes
    the models. It decodes one prompt at a time.
    """

    def __init__(
        self, drafter: Drafter, verifier: Verifier | SiblingRule, cache_length: int | None = None
    ) -> None:
        if isinstance(verifier, type):
            name = verifier.__name__
            raise InvalidInput(f"the verifier is the class {name}; allowed: an object, {name}()")
        self.drafter = drafter
        self.verifier = as_verifier(verifier)
        self.cache_length = cache_length
        self._is_taken = threading.Lock()
        self._kept_for: Any = None
        self._kept: Stepper | None = None

    def __reduce__(self) -> Any:
        """A copy has caches of its own."""
        return type(self), (self.drafter, self.verifier, self.cache_length)

    @torch.inference_mode()
    def generate(  # noqa: PLR0913 - the last three are for those who look on
        self,
        pair: Pair,
        prompt: list[int],
        sampling: Sampling,
        generator: Generator,
        on_step: Callable[[Step], Any] | None = None,
        is_last: Callable[[int], bool] | None = None,
        is_checked: bool = False,
    ) -> Generation:
        """Continue a prompt of at least one token by draws of `generator`, on the target's device.

        on_step: called after every step. is_last: called with each returned token in turn, says
        whether the token ends the sequence; if None, the pair's `end_token_ids` end it, unless
        `ignore_eos`. A stopwatch set by `measuring` times the parts "draft", "target", "verify" and
        "commit" of every step.
        is_checked: whether a verifier or a drafter that changes its inputs is refused, which takes
        time; for audits.

        Raises InvalidInput when the prompt or the tree does not fit, and while another prompt is
        decoded; FloatingPointError when a law is NaN.
        """
        self.check(pair, len(prompt), sampling)
        device, budget = pair.target.device, sampling.num_returned(len(prompt))
        if is_last is None:
            is_last = (frozenset[int]() if sampling.ignore_eos else pair.end_token_ids).__contains__
        tokens: list[int] = []
        num_emitted: list[int] = []
        num_drafted = 0
        has_ended = False
        with self._begun(pair, prompt, sampling, generator) as (stepper, start):
            decode_start = now(device)
            ends = [decode_start]
            while len(tokens) < budget and not has_ended:
                step = stepper.step(is_checked)
                num_emitted.append(step.verdict.num_emitted)
                num_drafted += step.draft.tree.topology.num_nodes - 1
                for token in step.verdict.tokens[: budget - len(tokens)]:
                    tokens.append(token)
                    if has_ended := is_last(token):
                        break
                if on_step is not None:
                    on_step(step)
                # frees the step's laws, so that the laws of the next step take their place
                del step
                ends.append(time.perf_counter())
            finish = now(device)
        limit = "max_new_tokens" if budget == sampling.max_new_tokens else "max_length"
        step_s = tuple(end - begin for begin, end in pairwise(ends))
        seconds = decode_start - start, finish - decode_start, step_s
        return Generation(
            tuple(tokens),
            tuple(num_emitted),
            num_drafted,
            "eos" if has_ended else limit,
            *seconds,
        )

    @contextmanager
    def _begun(
        self, pair: Pair, prompt: list[int], sampling: Sampling, generator: Generator
    ) -> Iterator[tuple[Stepper, float]]:
        """The stepper, which has read a prompt, and when it began to, in seconds.

        In the block the stepper is nobody else's. After the block, whatever has ended it,
        `generator` is in the state after all draws, and the models are in training mode if they
        were. Raises InvalidInput while another prompt is decoded.
        """
        if not self._is_taken.acquire(blocking=False):
            raise InvalidInput(
                "the decoder is decoding another prompt; allowed: one prompt at a time, and a "
                "decoder, or a Speculator, for each thread"
            )
        try:
            with evaluating(pair.modules()):
                stepper = self._stepper(pair, sampling.warp, self.capacity(len(prompt), sampling))
                start = now(pair.target.device)
                stepper.begin(prompt, generator)
                try:
                    yield stepper, start
                finally:
                    stepper.end(generator)
        finally:
            self._is_taken.release()

    def capacity(self, prompt_length: int, sampling: Sampling) -> int:
        """The number of committed tokens that fit into the caches, a multiple of `ROUND_TO`."""
        # The last step may commit as many tokens past the limit as the tree has levels.
        length = (
            prompt_length + sampling.num_returned(prompt_length) + self.drafter.topology.num_levels
        )
        return -(-length // ROUND_TO) * ROUND_TO

    def _stepper(self, pair: Pair, warp: Warp, capacity: int) -> Stepper:
        """The stepper for a pair, warp and cache capacity; the last one if it still fits.

        It fits if it was made for the same, and the models and the drafter are as they were; where
        its steps are captured, so must be the verifier.
        """
        parts: tuple[Any, ...] = (self.drafter, self.verifier, pair, warp, capacity)
        is_captured = not reading_is_free(pair.target.device)
        settings = [settings_in(self.drafter)]
        if is_captured:
            settings.append(settings_in(self.verifier))
        states = pair.states(), settings
        if self._kept_for != (parts, states):
            self._kept = self._kept_for = None  # before the next stepper's caches are made
            self._kept = Stepper(*parts)
            self._kept_for = parts, states
        assert self._kept is not None
        return self._kept

    def check(self, pair: Pair, prompt_length: int, sampling: Sampling) -> None:
        """Raise InvalidInput unless prompt and trees fit the limits and `sampling` has no penalty.

        Nor may a text cross a length at which the target's rotary frequencies change.
        """
        levels, length = self.drafter.topology.num_levels, sampling.max_length
        if prompt_length < 1:
            raise InvalidInput("a prompt holds at least one token; found an empty one")
        for name in PENALTIES:
            if (value := getattr(sampling, name)) != (off := getattr(Warp(), name)):
                raise InvalidInput(
                    f"{name} is {value}, which would be another law at every node of a tree; "
                    f"allowed: {off:g}"
                )
        # a tree must fit behind the prompt, even where fewer tokens are asked for
        if length is None:
            length = prompt_length + max(sampling.max_new_tokens, levels)
        if prompt_length + levels > length:
            shorter = f"prompts of at most {length - levels} tokens"
            longer = f"max_length from {prompt_length + levels}"
            raise InvalidInput(
                f"a prompt of {prompt_length} tokens and a tree of {levels} levels cannot fit "
                f"max_length {length}; allowed: {shorter if length > levels else longer}"
            )
        context = min(model.context for model in (pair.target, pair.draft) if model is not None)
        # The last step starts below max_length and its deepest node lies levels - 1 positions after
        # its root.
        if length + levels - 2 > context:
            most = context - levels + 2
            allowed = f"max_length up to {most}" if most > levels else "a tree of fewer levels"
            raise InvalidInput(
                f"max_length {length} with a tree of {levels} levels exceeds the models' context "
                f"of {context} positions; allowed: {allowed}"
            )
        num_nodes, count = self.drafter.topology.num_nodes, sampling.num_returned(prompt_length)
        # positions up to the deepest node of the last step
        last = prompt_length + count + levels - 2
        text = f"a prompt of {prompt_length} tokens, {count} new ones and a tree of {levels} levels"
        check_one_side(
            getattr(pair.target, "rope_switches", ()), prompt_length, last, text, "target"
        )
        # The last step starts one token short of the limit, and its root is not cached yet.
        positions = prompt_length + count - 2 + num_nodes
        if self.cache_length is not None and positions > self.cache_length:
            raise InvalidInput(
                f"a prompt of {prompt_length} tokens, {count} new ones and a tree of {num_nodes} "
                f"nodes take {positions} cached positions; cache_length allows {self.cache_length}"
            )
