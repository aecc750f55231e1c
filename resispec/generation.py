"""Speculative sampling in one call, for programs that are no benchmark: `resispec.generate`.

It is the loop of `resispec.decode` with what a program has at hand: modules in memory, a prompt, and settings
of sampling. A `Speculator` keeps caches, and on a GPU captured graphs, from one prompt to the next.
"""

import warnings
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from resispec.audit.battery import shown_bias
from resispec.decode import Decoder, Generation
from resispec.drafters import OwnDraft
from resispec.draws import Draws
from resispec.errors import InvalidInput
from resispec.models import EagleModel
from resispec.models.loading import as_pair
from resispec.sampling import Sampling, Warp
from resispec.step import Step
from resispec.trees import Topology
from resispec.trees.named import find
from resispec.verifiers import get_verifier

__all__ = ["Continuation", "Speculator", "generate"]


@dataclass(frozen=True)
class Continuation(Generation):
    """A prompt's continuation, see `Generation`. text: None where there is no tokenizer."""

    text: str | None

    @property
    def accepted_length(self) -> float:
        """Tokens emitted per forward of the target, in the mean over the steps."""
        return sum(self.num_emitted) / len(self.num_emitted)


class Speculator:
    """A pair with a way to speculate, for one prompt after another.

    target, draft, tokenizer: see `resispec.models.loading.as_pair`; the draft may be an `EagleModel`.
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

    def generate(
        self,
        prompt: str | Sequence[int] | Tensor,
        *,
        seed: int | None = None,
        eos_token_ids: Sequence[int] | None = None,
        on_step: Callable[[tuple[int, ...]], Any] | None = None,
        allow_biased: bool = False,
        **settings: Any,
    ) -> Continuation:
        """Continue one prompt: a text, token ids, or a tensor of them, (L,) or (1, L).

        seed: of this prompt's randomness; without one, torch's global generator is drawn from.
        eos_token_ids: tokens that end the text, the last one included; without them, the pair's, see
        `Pair.end_token_ids`. on_step: called with the tokens of every step as soon as they are known.
        allow_biased: whether `warn_of_bias` is left out. settings: the fields of `Sampling`.
        Raises InvalidInput for an unknown setting, more than one prompt, a prompt that does not fit, and ids
        or a seed that are none.
        """
        sampling, ids = _sampling(settings), self._ids(prompt)
        if not allow_biased:
            self.warn_of_bias(sampling)
        ends = self.pair.end_token_ids
        if eos_token_ids is not None:
            ends = frozenset(self._checked("eos_token_ids", eos_token_ids))
        if seed is not None and not (type(seed) is int and -(2**63) <= seed < 2**64):
            raise InvalidInput(f"seed is {seed!r}; allowed: whole numbers from -2^63 to 2^64 - 1")
        is_last = (frozenset[int]() if sampling.ignore_eos else ends).__contains__
        generation = self.write(ids, sampling, seed, is_last, on_step)
        tokenizer = self.pair.tokenizer
        text = None if tokenizer is None else tokenizer.decode(list(generation.tokens))
        return Continuation(**vars(generation), text=text)

    def write(
        self,
        prompt: list[int],
        sampling: Sampling,
        seed: int | None,
        is_last: Callable[[int], bool],
        put: Callable[[tuple[int, ...]], Any] | None,
    ) -> Generation:
        """Decode until a limit is reached or `is_last` of a token; `put` gets the tokens of every step."""
        generator = _global_generator(self.pair.target.device)
        if seed is not None:
            generator = Generator(generator.device).manual_seed(seed)
        tokens: list[int] = []

        def ends_with(token: int) -> bool:
            tokens.append(token)
            return is_last(token)

        def hand_on(_: Step) -> None:
            if put is not None:
                put(tuple(tokens))
            tokens.clear()

        decoder = self._decoders[sampling.temperature == 0]
        return decoder.generate(self.pair, prompt, sampling, generator, on_step=hand_on, is_last=ends_with)

    def warn_of_bias(self, warp: Warp) -> None:
        """Warn, once a process, when sampled tokens will not have the target's law, see `shown_bias`."""
        if warp.temperature > 0 and self._bias is not None:
            warnings.warn(self._bias, stacklevel=1)  # always from this line: Python shows it once

    @cached_property
    def _bias(self) -> str | None:
        with suppress(Exception):  # of a third party's code for three tokens; decoding says what is wrong
            return shown_bias(self._decoders[False].verifier, self._draws_of(False))
        return None

    def _draws_of(self, is_greedy: bool) -> Draws:
        default = Draws.WITHOUT_REPLACEMENT if isinstance(self.pair.draft, EagleModel) else Draws.IID
        return Draws(self._draws or (Draws.POINT_MASS if is_greedy and self._verifier is None else default))

    def _decoder(self, is_greedy: bool) -> Decoder:
        """Raises InvalidInput for draws that the drafter does not have."""
        draws = self._draws_of(is_greedy)
        verifier = self._verifier or ("traversal_optimal" if draws == Draws.IID else "traversal")
        drafter = OwnDraft(find(self._tree, draws), draws).drafter(self.pair)
        return Decoder(drafter, get_verifier(verifier) if isinstance(verifier, str) else verifier)

    def _ids(self, prompt: Any) -> list[int]:
        """The token ids of one prompt. Raises InvalidInput for several prompts, and for what is no id."""
        ids: Any = prompt
        if isinstance(prompt, str):
            if self.pair.tokenizer is None:
                raise InvalidInput("the prompt is text; give its tokenizer, as tokenizer=, or token ids")
            ids = self.pair.tokenizer.encode(prompt)
        ids = ids.tolist() if isinstance(ids, Tensor) else ids
        if isinstance(ids, list | tuple) and ids and isinstance(ids[0], list | str):
            if len(ids) != 1 or isinstance(ids[0], str):
                raise InvalidInput(f"a batch of {len(ids)} prompts; allowed: one prompt at a time")
            ids = ids[0]
        return self._checked("the prompt", ids)

    def _checked(self, place: str, ids: Any) -> list[int]:
        """Token ids from a sequence, a set or a tensor. Raises InvalidInput for what else they are."""
        ids = ids.tolist() if isinstance(ids, Tensor) else ids
        if isinstance(ids, str | bytes | bytearray | memoryview) or not isinstance(ids, Sequence | Set):
            raise InvalidInput(f"{place} is {type(ids).__name__}; allowed: a list or a tensor of token ids")
        size = self.pair.target.vocab_size
        for token in ids:
            if type(token) is not int or not 0 <= token < size:
                raise InvalidInput(f"{place} holds {token!r}; allowed: token ids from 0 to {size - 1}")
        return list(ids)


def _global_generator(device: torch.device) -> Generator:
    """The generator that `torch.manual_seed` seeds for a device."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def generate(
    target: Any,
    draft: Any,
    prompt: str | Sequence[int] | Tensor,
    tree: str | Path | Topology = "best_64",
    verifier: Any = None,
    **options: Any,
) -> Continuation:
    """Continue a prompt, several tokens a forward of the target, with its law unless the verifier is biased.

    target, draft, tree, verifier, and among the options draws and tokenizer: see `Speculator`, which is what
    to keep for many prompts, since this call prepares everything anew. options: see `Speculator.generate`.
    Raises InvalidInput as they do.
    """
    method = {name: options.pop(name) for name in ("draws", "tokenizer") if name in options}
    _sampling({name: value for name, value in options.items() if name not in _OPTIONS})  # before models load
    return Speculator(target, draft, tree, verifier, **method).generate(prompt, **options)


_OPTIONS = ("seed", "eos_token_ids", "on_step", "allow_biased")
"""The options of a call that are not settings of sampling."""


def _sampling(settings: dict[str, Any]) -> Sampling:
    """The settings of a call. Raises InvalidInput for an unknown name, with the known ones."""
    names = [setting.name for setting in fields(Sampling)]
    for name in settings:
        if name not in names:
            raise InvalidInput(
                f"unknown option {name!r}; known: {', '.join([*names, *_OPTIONS, 'draws', 'tokenizer'])}"
            )
    return Sampling(**settings)
