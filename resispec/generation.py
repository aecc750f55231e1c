"""Speculative sampling in one call, for programs that are no benchmark: `resispec.generate`.

It is the loop of `resispec.decode` with what a program has at hand: modules in memory, a prompt, and settings
of sampling. A `Speculator` keeps caches, and on a GPU captured graphs, from one prompt to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Generator, Tensor

from resispec.decode import Decoder, Generation
from resispec.drafters import Drafter, DraftModel, Eagle, Reading
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models import EagleModel, Warp
from resispec.models.in_memory import NoTokenizer, as_pair, global_generator
from resispec.step import Step
from resispec.transcripts import WarpSettings
from resispec.trees import Topology
from resispec.trees.named import find
from resispec.verifiers import get_verifier

__all__ = ["Continuation", "Options", "Speculator", "generate"]


@dataclass(frozen=True, kw_only=True)
class Options(WarpSettings):
    """How to continue a prompt; every option has a default.

    temperature, top_p, top_k, min_p: of target and draft alike, so that the tokens have the target's warped
    law; temperature 0 is greedy. max_new_tokens: tokens at most. seed: of this prompt's randomness; without
    one, torch's global generator is drawn from. eos_token_ids: tokens that end the text, the last one
    included; without them, the pair's, see `Pair.end_token_ids`. on_step: called with the tokens of every
    step as soon as they are known.
    Raises InvalidInput for values that are not allowed.
    """

    max_new_tokens: int = 128
    seed: int | None = None
    eos_token_ids: Sequence[int] | None = None
    on_step: Callable[[tuple[int, ...]], Any] | None = None

    def __post_init__(self) -> None:
        self.check("generate")

    @property
    def warp(self) -> Warp:
        """How logits become laws."""
        return Warp.of(self)

    def generator(self, everyone: Generator) -> Generator:
        """What to draw from; `everyone` is the device's global generator."""
        return everyone if self.seed is None else Generator(everyone.device).manual_seed(self.seed)


@dataclass(frozen=True)
class Continuation(Generation):
    """What was written after a prompt, see `Generation`. text: None where there is no tokenizer."""

    text: str | None

    @property
    def accepted_length(self) -> float:
        """Tokens emitted per forward of the target, in the mean over the steps."""
        return sum(self.num_emitted) / len(self.num_emitted)


class Listener:
    """Takes the tokens of every step, up to the last one that is wanted, and hands them on.

    most: tokens at most. is_last: asked of every token in turn. put: called with each step's tokens.
    """

    def __init__(
        self, most: int, is_last: Callable[[int], bool], put: Callable[[tuple[int, ...]], Any] | None
    ) -> None:
        self._most, self._is_last, self._put = most, is_last, put
        self.tokens: tuple[int, ...] = ()
        self.has_ended = False

    def __call__(self, step: Step) -> bool:
        """Take what a step emitted; whether this was the end."""
        taken: tuple[int, ...] = ()
        for token in step.verdict.tokens[: self._most - len(self.tokens)]:
            taken = (*taken, token)
            if self._is_last(token):
                self.has_ended = True
                break
        self.tokens += taken
        if self._put is not None:
            self._put(taken)
        return self.has_ended


class Speculator:
    """A pair with a way to speculate, for one prompt after another.

    target, draft, tokenizer: see `resispec.models.in_memory.as_pair`; the draft may be an `EagleModel`.
    tree: a topology, or its name, see `resispec.trees.named.find`. verifier, draws: by name or as objects.
    Left open they are what serves best: siblings drawn independently with `traversal_optimal`; where decoding
    is greedy the draft's most probable tokens, where the draft is EAGLE's draws without replacement, both
    with `traversal`.
    Raises InvalidInput for what is unknown or does not fit together.
    """

    def __init__(
        self,
        target: Any,
        draft: Any,
        tree: str | Path | Topology = "best_64",
        verifier: Any = None,
        draws: str | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.pair = as_pair(target, draft, tokenizer)
        self._tree, self._verifier, self._draws = tree, verifier, draws
        self._decoders = {is_greedy: self._decoder(is_greedy) for is_greedy in (False, True)}

    def generate(self, prompt: str | Sequence[int] | Tensor, **options: Any) -> Continuation:
        """Continue one prompt: a text, token ids, or a tensor of them, (L,) or (1, L). options: `Options`.

        Raises InvalidInput for an unknown option, more than one prompt, or a prompt that does not fit.
        """
        chosen, ids = _chosen(options), self._ids(prompt)
        ends = self.pair.end_token_ids if chosen.eos_token_ids is None else frozenset(chosen.eos_token_ids)
        listener = Listener(chosen.max_new_tokens, ends.__contains__, chosen.on_step)
        generator = chosen.generator(global_generator(self.pair.target.device))
        found = self.write(ids, chosen.warp, chosen.max_new_tokens, generator, listener)
        has_tokenizer = not isinstance(self.pair.tokenizer, NoTokenizer)
        text = self.pair.tokenizer.decode(list(found.tokens)) if has_tokenizer else None
        return Continuation(**vars(found), text=text)

    def write(
        self, prompt: list[int], warp: Warp, most: int, generator: Generator, listener: Listener
    ) -> Generation:
        """Decode until `most` tokens are written or the listener has heard the end."""
        decoder = self._decoders[warp.temperature == 0]
        sampling = decoder.sampling(len(prompt), most, warp, ignore_eos=True)
        found = decoder.generate(self.pair, prompt, sampling, generator, on_step=listener)
        reason = "eos" if listener.has_ended else found.stop_reason
        return replace(found, tokens=listener.tokens, stop_reason=reason)

    def _decoder(self, is_greedy: bool) -> Decoder:
        is_eagle = isinstance(self.pair.draft, EagleModel)
        best = Draws.WITHOUT_REPLACEMENT if is_eagle else Draws.IID
        draws = Draws(self._draws or (Draws.POINT_MASS if is_greedy and self._verifier is None else best))
        verifier = self._verifier or ("traversal_optimal" if draws == Draws.IID else "traversal")
        made = get_verifier(verifier) if isinstance(verifier, str) else verifier
        return Decoder(_drafter(find(self._tree, draws), draws, is_eagle), made)

    def _ids(self, prompt: Any) -> list[int]:
        """The token ids of one prompt, once they are some."""
        found = self.pair.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        found = found.tolist() if isinstance(found, Tensor) else list(found)
        if found and isinstance(found[0], list | str):
            if len(found) != 1 or isinstance(found[0], str):
                raise InvalidInput(f"a batch of {len(found)} prompts; allowed: one prompt at a time")
            found = found[0]
        size = self.pair.target.vocab_size
        wrong = next((token for token in found if type(token) is not int or not 0 <= token < size), None)
        if wrong is not None:
            raise InvalidInput(f"the prompt holds {wrong!r}; allowed: token ids from 0 to {size - 1}")
        return found


def generate(
    target: Any,
    draft: Any,
    prompt: str | Sequence[int] | Tensor,
    tree: str | Path | Topology = "best_64",
    verifier: Any = None,
    **options: Any,
) -> Continuation:
    """Continue a prompt with the exact law of the target, several tokens a forward of it.

    target, draft, tree, verifier, and among the options draws and tokenizer: see `Speculator`, which is what
    to keep for many prompts, since this call prepares everything anew. options: see `Options`.
    Raises InvalidInput as they do.
    """
    own = {name: options.pop(name) for name in ("draws", "tokenizer") if name in options}
    _chosen(options)  # before models are loaded
    return Speculator(target, draft, tree, verifier, **own).generate(prompt, **options)


def _chosen(given: dict[str, Any]) -> Options:
    """The options of a call. Raises InvalidInput for an unknown name, with the known ones."""
    known = [option.name for option in fields(Options)]
    for name in given:
        if name not in known:
            raise InvalidInput(f"unknown option {name!r}; known: {', '.join([*known, 'draws', 'tokenizer'])}")
    return Options(**given)


def _drafter(topology: Topology, draws: Draws, is_eagle: bool) -> Drafter:
    """What fills the tree. Raises InvalidInput for draws that it does not have."""
    if not is_eagle:
        return DraftModel(topology, draws)
    readings = {Draws.POINT_MASS: Reading.POINT_MASS, Draws.WITHOUT_REPLACEMENT: Reading.SAMPLED}
    if draws not in readings:
        raise InvalidInput(f"an EAGLE drafter has no draws {draws}; allowed: {', '.join(readings)}")
    return Eagle(topology, readings[draws])
