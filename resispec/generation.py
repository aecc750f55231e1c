"""Speculative sampling in one call, for programs other than benchmarks: `resispec.generate`.

The call runs the loop of `resispec.decode` on the things that a program has at hand: modules in
memory, a prompt and sampling settings. A `Speculator` keeps caches, and captured graphs on a GPU,
between prompts.
"""

import warnings
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from resispec.audit.battery import shown_bias
from resispec.audit.row_checks import check_draws
from resispec.decode import Decoder, Generation
from resispec.drafters import Drafter, DraftModel
from resispec.draws import Draws, DrawsKind
from resispec.errors import InvalidInput
from resispec.models import EagleModel
from resispec.models.loading import as_pair
from resispec.sampling import Sampling, Warp, as_python
from resispec.step import Step
from resispec.trees import Topology
from resispec.trees.named import find
from resispec.verifiers import get_verifier

__all__ = ["Continuation", "Speculator", "generate"]


@dataclass(frozen=True)
class Continuation(Generation):
    """A prompt's continuation, see `Generation`.

    text: the decoded tokens; None without a tokenizer.
    """

    text: str | None

    @property
    def accepted_length(self) -> float:
        """The mean number of tokens emitted per step, which is one forward of the target."""
        return sum(self.num_emitted) / len(self.num_emitted)


class Speculator:
    """A pair of models with a tree, a verifier and draws, for one prompt after another.

    target, draft, tokenizer: see `resispec.models.loading.as_pair`; the draft may be an
    `EagleModel`.
    tree: a topology, or its name, see `resispec.trees.named.find`. verifier, draws: names or
    objects. If both are None, the best choice is made: independent draws with `traversal_optimal`;
    but for greedy decoding the draft's most probable tokens, and for an EAGLE draft draws without
    replacement, both with `traversal`. Raises InvalidInput for unknown names and for parts that do
    not fit together.
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
        self._biases: dict[bool, str | None] = {}

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

        seed: the seed of this prompt's randomness; None draws one from torch's global generator.
        eos_token_ids: tokens that end the text, where the ending token is returned, too; None takes
        the pair's, see `Pair.end_token_ids`. on_step: called with the tokens of every step as soon
        as they are known. allow_biased: whether `warn_of_bias` is skipped. settings: the fields of
        `Sampling`.
        Raises InvalidInput for an unknown setting, more than one prompt, a prompt that does not
        fit, and invalid ids or seeds.
        """
        sampling, ids = _sampling(settings), self._ids(prompt)
        if not allow_biased:
            self.warn_of_bias(sampling)
        ends = self.pair.end_token_ids
        if eos_token_ids is not None and sampling.ignore_eos:
            raise InvalidInput("eos_token_ids beside ignore_eos=True; allowed: one of them")
        if eos_token_ids is not None:
            ends = frozenset(self._checked("eos_token_ids", eos_token_ids))
        seed = as_python(seed)
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
        """Decode until a limit or a token with `is_last` True; `put` gets each step's tokens."""
        if seed is None:
            seed = _drawn_seed(self.pair.target.device)
        generator = Generator(self.pair.target.device).manual_seed(seed)
        tokens: list[int] = []

        def ends_with(token: int) -> bool:
            tokens.append(token)
            return is_last(token)

        def hand_on(_: Step) -> None:
            if put is not None:
                put(tuple(tokens))
            tokens.clear()

        decoder = self._decoders[sampling.temperature == 0]
        return decoder.generate(
            self.pair, prompt, sampling, generator, on_step=hand_on, is_last=ends_with
        )

    def warn_of_bias(self, warp: Warp) -> None:
        """Warn, once for each verifier, that tokens will lack the target's law, see `shown_bias`.

        At temperature 0 the warning is that they will not be the likeliest.
        """
        is_greedy = warp.temperature == 0
        if is_greedy not in self._biases:
            verifier = self._decoders[is_greedy].verifier
            self._biases[is_greedy] = shown_bias(verifier, self._draws_of(is_greedy), is_greedy)
        if (bias := self._biases[is_greedy]) is not None:
            warnings.warn(bias, stacklevel=1)  # always from this line: Python shows it once

    def _draws_of(self, is_greedy: bool) -> DrawsKind:
        default = (
            Draws.WITHOUT_REPLACEMENT if isinstance(self.pair.draft, EagleModel) else Draws.IID
        )
        if is_greedy and self._verifier is None:
            default = Draws.POINT_MASS
        return Draws(default if self._draws is None else self._draws)

    def _decoder(self, is_greedy: bool) -> Decoder:
        """Make the greedy or the random decoder.

        Raises InvalidInput for draws that the drafter lacks, and as `check_draws`.
        """
        draws = self._draws_of(is_greedy)
        check_draws(draws)
        verifier = self._verifier
        if verifier is None:
            verifier = "traversal_optimal" if draws.name == Draws.IID else "traversal"
        draft_model = DraftModel(find(self._tree, draws), draws)
        drafter: Drafter = (
            draft_model.as_eagle() if isinstance(self.pair.draft, EagleModel) else draft_model
        )
        return Decoder(drafter, get_verifier(verifier) if isinstance(verifier, str) else verifier)

    def _ids(self, prompt: Any) -> list[int]:
        """The token ids of one prompt.

        Raises InvalidInput for several prompts and for invalid ids.
        """
        if isinstance(prompt, str):
            if self.pair.tokenizer is None:
                raise InvalidInput(
                    "the prompt is text; give its tokenizer, as tokenizer=, or token ids"
                )
            prompt = self.pair.tokenizer.encode(prompt)
        if isinstance(prompt, Set):  # without order, so no text
            raise InvalidInput(
                f"the prompt is {type(prompt).__name__}; allowed: text, or a list or a tensor of "
                "token ids"
            )
        ids = prompt.tolist() if isinstance(prompt, Tensor) else prompt
        if isinstance(ids, list | tuple) and ids and isinstance(ids[0], list | str):
            if isinstance(ids[0], str):
                raise InvalidInput(
                    "the prompt is a list of texts; allowed: one text, or a list of token ids"
                )
            if len(ids) != 1:
                raise InvalidInput(f"a batch of {len(ids)} prompts; allowed: one prompt at a time")
            ids = ids[0]
        return self._checked("the prompt", ids)

    def _checked(self, place: str, ids: Any) -> list[int]:
        """Token ids of a sequence, set or tensor.

        Raises InvalidInput for another type or an invalid id.
        """
        ids = ids.tolist() if isinstance(ids, Tensor) else ids
        if isinstance(ids, str | bytes | bytearray | memoryview) or not isinstance(
            ids, Sequence | Set
        ):
            raise InvalidInput(
                f"{place} is {type(ids).__name__}; allowed: a list or a tensor of token ids"
            )
        size, tokens = self.pair.target.vocab_size, [as_python(token) for token in ids]
        for token in tokens:
            if type(token) is not int or not 0 <= token < size:
                raise InvalidInput(
                    f"{place} holds {token!r}; allowed: token ids from 0 to {size - 1}"
                )
        return tokens


def _drawn_seed(device: torch.device) -> int:
    """A seed drawn from the generator that `torch.manual_seed` seeds for a device.

    Steps must not draw from that generator itself, or from a copy of its state: a verifier that
    draws from it would get the drafter's own random numbers.
    """
    return int(torch.randint(2**63 - 1, (), device=device))


def generate(
    target: Any,
    draft: Any,
    prompt: str | Sequence[int] | Tensor,
    tree: str | Path | Topology = "best_64",
    verifier: Any = None,
    **options: Any,
) -> Continuation:
    """Continue a prompt by several tokens per target forward; exact unless the verifier is biased.

    target, draft, tree, verifier, and the options draws and tokenizer: see `Speculator`; use that
    class for many prompts, since this call prepares everything anew. Other options: see
    `Speculator.generate`. Raises InvalidInput as both do.
    """
    method = {name: options.pop(name) for name in ("draws", "tokenizer") if name in options}
    settings = {name: value for name, value in options.items() if name not in _OPTIONS}
    _sampling(settings, "tree", "verifier", "draws", "tokenizer")  # before models load
    return Speculator(target, draft, tree, verifier, **method).generate(prompt, **options)


_OPTIONS = ("seed", "eos_token_ids", "on_step", "allow_biased")
"""The options of `Speculator.generate` that are not sampling settings."""


def _sampling(settings: dict[str, Any], *others: str) -> Sampling:
    """The sampling settings of a call.

    Raises InvalidInput, listing the known names, for an unknown name.

    others: names of options that the call has besides those of `Speculator.generate`.
    """
    names = [setting.name for setting in fields(Sampling)]
    for name in settings:
        if name not in names:
            known = ", ".join((*names, *_OPTIONS, *others))
            raise InvalidInput(f"unknown option {name!r}; known: {known}")
    return Sampling(**settings)
