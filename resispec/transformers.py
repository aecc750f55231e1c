"""Exact speculative sampling inside the `generate` of transformers.

model.generate(**inputs, do_sample=True, custom_generate=resispec.transformers.speculative(draft))
"""

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, GenerationMixin
from transformers.generation import logits_process
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateDecoderOnlyOutput

from resispec.errors import InvalidInput
from resispec.generation import Speculator
from resispec.models.module_state import evaluating, is_known
from resispec.sampling import Sampling, Warp
from resispec.trees import Topology

__all__ = ["Speculative", "SpeculatedOutput", "speculative"]

_MODES = (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_WARPERS: dict[type[logits_process.LogitsProcessor], str] = {
    logits_process.TemperatureLogitsWarper: "temperature",
    logits_process.TopKLogitsWarper: "top_k",
    logits_process.TopPLogitsWarper: "top_p",
    logits_process.MinPLogitsWarper: "min_p",
}
"""The setting of each of transformers' warpers, in transformers' order."""


@dataclass
class SpeculatedOutput(GenerateDecoderOnlyOutput):
    """The result of `generate` with return_dict_in_generate.

    num_emitted: number of tokens of each step.
    """

    num_emitted: tuple[int, ...] | None = None


@dataclass(eq=False)
class Speculative:
    """A `custom_generate` for one prompt at a time; it keeps the caches of its last call's model.

    draft, tree, verifier, draws: see `resispec.generation.Speculator`; allow_biased: see its
    `warn_of_bias`. The law follows from do_sample, temperature, top_k, top_p and min_p of the
    generation configuration, as transformers resolves them (top_k is 50 by default). Lengths, ends
    of sequence, stop strings, max_time, stopping criteria and streamers work as usual, and
    randomness comes from torch's global generator. With return_dict_in_generate the result is a
    `SpeculatedOutput`.
    Raises InvalidInput, when called, for any other setting that would change the tokens, naming the
    setting.
    """

    draft: Any
    tree: str | Path | Topology = "best_64"
    verifier: Any = None
    draws: str | None = None
    allow_biased: bool = False
    _kept: tuple[Any, Any] = field(default=(None, None), init=False, repr=False)

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Tensor | SpeculatedOutput:
        """Continue input_ids (1, L) int64; returns (1, L + new) or, if asked, a `SpeculatedOutput`.

        `generate` calls this. Raises InvalidInput for a request that cannot be met.
        """
        _check_request(input_ids, generation_config, model_kwargs)
        _check_inputs_of(model)
        warp = read_warp(logits_processor, generation_config.do_sample)
        parts = model, self.draft, self.tree, self.verifier, self.draws
        if self._kept[0] != parts:
            with evaluating((model, self.draft)):
                self._kept = parts, Speculator(*parts)
        speculator: Speculator = self._kept[1]
        streamer = _argument_of_caller("streamer")
        if not self.allow_biased:
            speculator.warn_of_bias(warp)
        length = input_ids.shape[1]
        sampling = Sampling(max_new_tokens=generation_config.max_length - length, **warp.by_name())
        ids = torch.cat((input_ids, input_ids.new_zeros(1, sampling.max_new_tokens)), 1)

        places = itertools.count(length)

        def is_last(
            token: int,
        ) -> bool:  # by transformers' stopping criteria, asked after every token
            place = next(places)
            ids[0, place] = token
            return bool(stopping_criteria(ids[:, : place + 1], None).all())

        put = None if streamer is None else lambda tokens: streamer.put(torch.tensor(tokens))
        generation = speculator.write(input_ids[0].tolist(), sampling, None, is_last, put)
        if streamer is not None:
            streamer.end()
        sequences: Any = ids[:, : length + len(generation.tokens)]
        if not generation_config.return_dict_in_generate:
            return sequences
        return SpeculatedOutput(sequences=sequences, num_emitted=generation.num_emitted)


speculative = Speculative
"""The name to call: `custom_generate=speculative(draft)`."""


def read_warp(processors: Sequence[logits_process.LogitsProcessor], do_sample: bool) -> Warp:
    """The warp that a list of transformers' processors amounts to; greedy unless `do_sample`.

    Allowed are temperature, top-k, top-p and min-p, each at most once, in this order and with no
    option but its own value. Raises InvalidInput naming the first processor that is not allowed.
    """
    settings, remaining = dict[str, Any](), iter(_WARPERS)
    for processor in processors:
        kind: Any = type(processor)
        if kind is logits_process.LogitNormalization:  # a law is normalised in any case
            continue
        # With other options, such as the fewest tokens to keep, a processor does more than its
        # value says.
        is_plain = kind in remaining and vars(processor) == vars(
            kind(getattr(processor, _WARPERS[kind]))
        )
        if not is_plain:
            options = getattr(processor, "__dict__", {}).items()
            values = {
                name: value for name, value in options if isinstance(value, str | int | float)
            }
            raise InvalidInput(
                f"logits processor {kind.__name__} {values} cannot be applied to a tree; "
                "allowed: temperature, top_k, top_p and min_p with their own value alone, in this "
                "order"
            )
        settings[_WARPERS[kind]] = getattr(processor, _WARPERS[kind])
    return Warp(**settings) if do_sample else Warp(temperature=0.0)


def _check_request(input_ids: Tensor, config: GenerationConfig, kwargs: dict[str, Any]) -> None:
    """Raise InvalidInput, naming the argument, for a request that speculation on trees cannot meet.

    kwargs: the arguments that `generate` passes on to the model's forward.
    """
    mode, cache = config.get_generation_mode(), config.cache_implementation
    sequences = config.num_return_sequences or 1
    problems = [
        (
            _argument_of_caller("assistant_model") is not None,
            "assistant_model",
            "none; speculative(draft)",
        ),
        (
            mode not in _MODES,
            f"generation mode {mode.value}",
            ", ".join(known.value for known in _MODES),
        ),
        (sequences > 1, f"num_return_sequences {sequences}", "1"),
        (len(input_ids) != 1, f"a batch of {len(input_ids)}", "a batch of one"),
        (
            cache not in (None, "dynamic"),
            f"cache_implementation {cache!r}",
            "none; the cache is our own",
        ),
    ]
    outputs = "return_dict_in_generate with sequences and num_emitted"
    problems += [(getattr(config, name, None), name, outputs) for name in _OUTPUTS]
    for name, value in kwargs.items():
        is_problem = value is not None and not _is_usual(name, value, input_ids)
        argument = f"{name} ({type(value).__name__})"
        problems.append((is_problem, argument, "input_ids of one prompt without padding alone"))
    for is_problem, argument, allowed in problems:
        if is_problem:
            raise InvalidInput(
                f"speculative custom_generate: {argument} cannot be used; allowed: {allowed}"
            )


def _check_inputs_of(model: Any) -> None:
    """Raise InvalidInput for a model whose inputs are prepared by code that is not transformers'.

    That of PEFT's soft prompts is such code; a tree's tokens are read without it.
    """
    name = "prepare_inputs_for_generation"
    usual = getattr(type(model), name)
    own = vars(model).get(name, usual)
    if getattr(own, "__func__", own) is not usual or not is_known(usual):
        raise InvalidInput(
            f"speculative custom_generate: {type(model).__name__} has a {name} of its own, which "
            "may add to the tokens that are read; allowed: models that are given their tokens alone"
        )


def _is_usual(name: str, value: Any, input_ids: Tensor) -> bool:
    """Whether an argument changes no token of a single prompt without padding."""
    # there is an own cache, and logits where they are needed
    if name in ("use_cache", "logits_to_keep"):
        return True
    if name == "attention_mask":
        return bool((value == 1).all())
    if name in ("position_ids", "cache_position"):
        places = torch.arange(input_ids.shape[1], device=value.device)
        return torch.equal(value.flatten(), places)
    if name in ("past_key_values", "cache"):  # as transformers calls it before 5.24, and since
        is_own = getattr(value, "_is_user_defined", False)
        return type(value) is DynamicCache and not is_own and value.get_seq_length() == 0
    return False


def _argument_of_caller(name: str) -> Any | None:
    """An argument of transformers' `generate` that is running; None if it has no such argument.

    `generate` passes a streamer and an assistant_model only to its own methods, at least up to
    5.23, but puts the prompt into the streamer, whose reader would then wait for ever for the rest.
    So both are read from the local variables of `generate`.
    """
    code, frame = inspect.unwrap(GenerationMixin.generate).__code__, inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get(name)
