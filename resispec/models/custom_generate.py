"""What transformers' `generate` hands to a function that is given as `custom_generate`, and takes back."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, GenerationMixin
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateDecoderOnlyOutput

from resispec.errors import InvalidInput

_MODES = (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_IGNORED = ("use_cache", "logits_to_keep")
"""Arguments that change no token: a cache of this library's own is used, and the logits that it needs."""


@dataclass
class SpeculatedOutput(GenerateDecoderOnlyOutput):
    """What `generate` returns with return_dict_in_generate. num_emitted: tokens of every step."""

    num_emitted: tuple[int, ...] | None = None


def check_request(model: Any, input_ids: Tensor, config: GenerationConfig, kwargs: dict[str, Any]) -> None:
    """Raise InvalidInput, which names the argument, for what cannot be done while speculating on a tree.

    kwargs: what `generate` hands on for the model's forward.
    """
    if model.config.is_encoder_decoder:
        raise _refused("an encoder-decoder", "decoders alone")
    if (mode := config.get_generation_mode()) not in _MODES:
        raise _refused(f"generation mode {mode.value}", ", ".join(one.value for one in _MODES))
    if (config.num_return_sequences or 1) > 1:
        raise _refused(f"num_return_sequences {config.num_return_sequences}", "1")
    if len(input_ids) != 1:
        raise _refused(f"a batch of {len(input_ids)}", "a batch of one")
    if config.cache_implementation not in (None, "dynamic"):
        raise _refused(f"cache_implementation {config.cache_implementation!r}", "none; the cache is our own")
    for name in _OUTPUTS:
        if getattr(config, name, None):
            raise _refused(name, "return_dict_in_generate with sequences and num_emitted")
    for name, value in kwargs.items():
        if not (name in _IGNORED or value is None or _is_usual(name, value, input_ids)):
            raise _refused(
                f"{name} ({type(value).__name__})", "input_ids of one prompt without padding alone"
            )


def _is_usual(name: str, value: Any, input_ids: Tensor) -> bool:
    """Whether an argument only says what holds in any case for one prompt without padding."""
    if name == "attention_mask":
        return bool((value == 1).all())
    if name in ("position_ids", "cache_position"):
        return torch.equal(value.flatten().cpu(), torch.arange(input_ids.shape[1]))
    if name == "past_key_values":
        is_own = getattr(value, "_is_user_defined", False)
        return type(value) is DynamicCache and not is_own and value.get_seq_length() == 0
    return False


def streamer_of_caller() -> Any | None:
    """The streamer of the `generate` of transformers that is running, None where it has none.

    `generate` puts the prompt into a streamer, but hands it on to methods of its own alone, at least up to
    5.23: whoever reads the other end of a streamer would wait for ever for the rest. So it is looked up
    where `generate` keeps it.
    """
    code, frame = inspect.unwrap(GenerationMixin.generate).__code__, inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("streamer")


def _refused(found: str, allowed: str) -> InvalidInput:
    return InvalidInput(f"speculative custom_generate: {found} cannot be used; allowed: {allowed}")
