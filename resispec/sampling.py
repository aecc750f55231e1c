"""Sampling settings, and the law that they make of a model's logits.

Temperature and filters are applied in the order of transformers' `generate`, or of another engine,
see FILTER_ORDERS; the penalties come first. transformers has no presence and no frequency penalty;
they are OpenAI's, as vLLM applies them (`vllm/model_executor/layers/utils.py`, `apply_penalties`):
after the repetition penalty, over emitted tokens alone. Importing this module imports no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from itertools import combinations, product
from numbers import Real
from typing import TYPE_CHECKING, Any

from resispec.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
"""The settings that depend on earlier tokens; every node of a tree would need its own warp."""

FILTERS = ("top_p", "top_k", "min_p")
"""The settings that remove tokens from a law."""

FILTER_ORDERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "transformers": (("temperature",), ("top_k",), ("top_p",), ("min_p",)),
    "llama.cpp": (("top_k",), ("top_p",), ("min_p",), ("temperature",)),
    "vllm": (("temperature",), ("min_p",), ("top_k",), ("top_p",)),
    "sglang": (("temperature",), ("top_k", "top_p"), ("min_p",)),
    "openvino": (("temperature",), ("top_k",), ("top_p",), ("min_p",)),
}
"""The steps from scores to a law, in the order of each engine.

Steps of one tuple see the same scores, and a token stays if all of them keep it; after each tuple
the remaining masses are renormalised to a law.

Sources, read in 2026: transformers 5.23.0, `_get_logits_processor` (generation/utils.py);
llama.cpp, the default chain `common_params_sampling::samplers` (common/common.h), without the
samplers that are off by default; vLLM, `Sampler` (v1/sample/sampler.py); SGLang, `Sampler`
(srt/layers/sampler.py), `filter_apply_order` "joint". OpenVINO GenAI's order is measured: only
orders with this law explain the tokens of the wheel 2026.4.1 (0 or 1 of 4,000 tokens outside of the
filters). Its source at commit 0731d8ec has min-p before top-p.
"""


def letters_of(name: str) -> str:
    """The letters of a name alone, in lower case, so that spellings compare."""
    return re.sub("[^a-z]", "", name.lower())


TENSORRT = "tensorrt"
_SPELLINGS = {
    "transformers": "transformers",
    "llama cpp": "llama.cpp",
    "llama server": "llama.cpp",
    "vllm": "vllm",
    "sg lang": "sglang",
    "sgl project": "sglang",
    "open vino": "openvino",
    "tensor rt": TENSORRT,
}
"""Words in engines' names, and the engines that they mean."""
_ENGINES = {
    re.compile(r"(?<![a-z])x?" + "[^a-z]*".join(words.split())): engine
    for words, engine in _SPELLINGS.items()
}
"""Patterns of these words at the beginning of a word, as in "xllamacpp", however they are split."""


def engine_of(name: str) -> str | None:
    """The engine that a name means, a key of FILTER_ORDERS or TENSORRT; None if it means none.

    It is the first one of which a word in the name speaks, as in "ik_llama.cpp", in any spelling.
    """
    words = re.sub("(?<=[a-z][a-z])(?=[A-Z])", " ", name).lower()  # NanoVLLM is "nano vllm"
    found = ((pattern.search(words), engine) for pattern, engine in _ENGINES.items())
    places = {match.start(): engine for match, engine in found if match}
    return places[min(places)] if places else None


def filter_order_of(engine: str) -> str:
    """The key of FILTER_ORDERS that an engine's name means (`engine_of`), else "transformers"."""
    name = engine_of(engine) or ""
    return name if name in FILTER_ORDERS else "transformers"


def as_python(value: Any) -> Any:
    """A number of NumPy as a number of Python; anything else stays as it is."""
    return value.item() if isinstance(value, Real) and hasattr(value, "item") else value


@dataclass(frozen=True, kw_only=True)
class Warp:
    """The settings that turn logits into a law; at temperature 0 the law is a point mass.

    top_p, top_k, min_p: off at 1, 0 and 0. repetition_penalty: as transformers defines it, 1 is
    off. presence_penalty, frequency_penalty: as OpenAI and vLLM define them, 0 is off.
    filter_order: a key of FILTER_ORDERS. Raises InvalidInput for a value that is not allowed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    filter_order: str = "transformers"

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, as_python(value))
        self.check("sampling")

    def check(self, place: str) -> None:
        """Raise InvalidInput, a line that begins with `place`, for a value that is not allowed."""
        for name, (holds, allowed) in _ALLOWED.items():
            if hasattr(self, name) and not holds(value := getattr(self, name)):
                raise InvalidInput(f"{place}: {name} is {value!r}; allowed: {allowed}")

    def by_name(self) -> dict[str, Any]:
        """The settings of the law by their names."""
        return {name: getattr(self, name) for name in SETTINGS}

    @cached_property
    def warp(self) -> Warp:
        """The settings of the law alone, without the fields that a subclass adds."""
        return Warp(**self.by_name())

    @cached_property
    def steps(self) -> tuple[tuple[str, ...], ...]:
        """The steps that are on, in the order of `filter_order`, see FILTER_ORDERS."""
        return self._steps(self.filter_order)

    def _steps(self, order: str) -> tuple[tuple[str, ...], ...]:
        groups = FILTER_ORDERS[order]
        steps = (
            tuple(key for key in group if getattr(self, key) != getattr(Warp, key))
            for group in groups
        )
        return tuple(filter(None, steps))

    def is_as_in(self, order: str) -> bool:
        """Whether these settings give the same law in another order, a key of FILTER_ORDERS.

        top-k looks at ranks, and min-p at ratios to the largest mass, which no filter changes. So
        only two things matter: the steps before top-p, and whether the temperature comes before
        min-p.
        """

        def decisive(steps: tuple[tuple[str, ...], ...]) -> set[tuple[str, str]]:
            pairs = {pair for groups in combinations(steps, 2) for pair in product(*groups)}
            return {
                pair for pair in pairs if pair[1] == "top_p" or pair == ("temperature", "min_p")
            }

        return self.temperature == 0 or decisive(self.steps) == decisive(self._steps(order))

    @property
    def for_draft(self) -> Warp:
        """The warp of the draft's logits: this warp, or plain temperature 1 if decoding is greedy.

        Tokens are exact with any law of the draft. A point mass would make all siblings equal and
        would not say which tokens come second.
        """
        return self if self.temperature else Warp()

    def law(self, logits: Tensor) -> Tensor:
        """The law (K, V) of logits (K, V) without penalties, in float32, or float64 if these are.

        Greedy decoding takes the first of equally likely tokens. NaN stays NaN.
        """
        scores = logits if logits.dtype.itemsize == 8 else logits.float()
        if self.temperature == 0:
            law = scores.new_zeros(scores.shape).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
            return law.masked_fill(scores.isnan().any(-1, keepdim=True), math.nan)
        return warped(scores, self).softmax(-1)


@dataclass(frozen=True)
class Sampling(Warp):
    """Settings of sampling and of stopping, at a limit or at an end of sequence if not ignored.

    temperature, and the other settings of `Warp`: for target and draft alike. max_new_tokens: most
    tokens returned. max_length: most tokens of prompt and continuation together; None for no limit.
    ignore_eos: whether end-of-sequence tokens are ignored. Raises InvalidInput as `Warp`.
    """

    temperature: float = 1.0
    max_new_tokens: int = 128
    max_length: int | None = None
    ignore_eos: bool = False

    def num_returned(self, prompt_length: int) -> int:
        """The most tokens that both limits allow after a prompt."""
        if self.max_length is None:
            return self.max_new_tokens
        return min(self.max_new_tokens, self.max_length - prompt_length)


SETTINGS = tuple(setting.name for setting in fields(Warp))
"""The names of the settings that decide the law of the tokens."""


def warped(scores: Tensor, warp: Warp) -> Tensor:
    """Scores (K, V) after temperature (not 0) and filters; -inf for tokens that are left out."""
    for group in warp.steps:
        results = [_STEPS[step](scores, warp) for step in group]
        scores = reduce(lambda some, others: some.minimum(others), results)
    return scores


def _in_top_k(scores: Tensor, warp: Warp) -> Tensor:
    least = scores.topk(min(warp.top_k, scores.shape[-1])).values[..., -1:]
    return scores.masked_fill(scores < least, -math.inf)


def _in_top_p(scores: Tensor, warp: Warp) -> Tensor:
    ascending, order = scores.sort()
    is_outside = ascending.softmax(-1).cumsum(-1) <= 1 - warp.top_p
    is_outside[..., -1].fill_(False)
    return scores.masked_fill(is_outside.scatter(-1, order, is_outside), -math.inf)


def _above_min_p(scores: Tensor, warp: Warp) -> Tensor:
    probs = scores.softmax(-1)
    return scores.masked_fill(probs < warp.min_p * probs.amax(-1, keepdim=True), -math.inf)


_STEPS: Mapping[str, Callable[[Tensor, Warp], Tensor]] = {
    "temperature": lambda scores, warp: scores / warp.temperature,
    "top_k": _in_top_k,
    "top_p": _in_top_p,
    "min_p": _above_min_p,
}
"""The steps of FILTER_ORDERS, as transformers computes each."""


def _is_within(least: float, most: float) -> Callable[[Any], bool]:
    """A test whether a value is an int or float, not a bool, within these bounds."""
    return lambda value: type(value) in (int, float) and least <= value <= most


_ADDED = (_is_within(-1000, 1000), "from -1000 to 1000, where 0 is off")
_ALLOWED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (
        lambda value: _is_within(0, 0)(value) or _is_within(1e-6, 1e6)(value),
        "0, which is greedy, or from 1e-6 to 1e6",
    ),
    "top_p": (_is_within(math.ulp(0.0), 1), "above 0, up to 1, where 1 is off"),
    "top_k": (
        lambda value: type(value) is int and 0 <= value < 2**31,
        "whole numbers from 0, where 0 is off, below 2147483648",
    ),
    "min_p": (_is_within(0, 1), "from 0 to 1, where 0 is off"),
    "repetition_penalty": (_is_within(1e-3, 1000), "from 0.001 to 1000, where 1 is off"),
    "presence_penalty": _ADDED,
    "frequency_penalty": _ADDED,
    "filter_order": (lambda value: value in tuple(FILTER_ORDERS), ", ".join(FILTER_ORDERS)),
    "max_new_tokens": (lambda value: type(value) is int and value > 0, "whole numbers from 1"),
    "max_length": (
        lambda value: value is None or type(value) is int and value > 0,
        "whole numbers from 1",
    ),
    "ignore_eos": (lambda value: type(value) is bool, "True and False"),
}
"""The allowed values of each setting, of `Sampling`, too: a test, and the same in words."""
