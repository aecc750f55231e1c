"""Settings under which an engine emits another law than a transcript declares, by its name.

They were read in the sources that `referee.servers.formats` names; OpenVINO GenAI's was measured.
`resispec transcripts` asks for none of them, and rows that say that they applied are not read. This
module imports no torch.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

from resispec.errors import InvalidInput
from resispec.sampling import (
    FILTER_ORDERS,
    PENALTIES,
    SETTINGS,
    TENSORRT,
    Warp,
    engine_of,
    letters_of,
)

OFF_ALONE: Final[Mapping[str, Mapping[str, str]]] = {
    "llama.cpp": dict.fromkeys(
        ("presence_penalty", "frequency_penalty"),
        "llama.cpp's counts the prompt's tokens as well, a transcript's emitted tokens alone",
    ),
    "sglang": {
        "repetition_penalty": "SGLang's counts emitted tokens alone, a transcript's the prompt's "
        "too"
    },
    "openvino": dict.fromkeys(
        ("presence_penalty", "frequency_penalty"),
        "OpenVINO GenAI's subtracts it from logits above 0 and adds it to those below, a "
        "transcript's subtracts",
    ),
    TENSORRT: dict.fromkeys(
        ("presence_penalty", "frequency_penalty"),
        "TensorRT-LLM's counts the prompt's tokens as well, a transcript's emitted tokens alone",
    ),
}
"""For engines, as `engine_of` names them, the settings that must be off, and why."""
_EMPTY = (0, "")  # False is 0
UNDECLARABLE: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(
        (
            "min_tokens", "min_new_tokens", "min_length", "logit_bias", "sequence_bias",
            "bad_words", "bad_words_ids", "bad_words_token_ids", "allowed_token_ids",
            "suppress_tokens", "begin_suppress_tokens", "force_words_ids", "forced_bos_token_id",
            "forced_eos_token_id", "structured_outputs", "guided_decoding", "guided_json",
            "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema", "regex",
            "ebnf", "structural_tag", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
            "exponential_decay_length_penalty", "epsilon_cutoff", "eta_cutoff", "top_a",
            "top_h", "smoothing_factor", "xtc_probability", "dry_multiplier", "mirostat",
            "mirostat_mode", "dynatemp_range", "use_beam_search", "diversity_penalty",
            "penalty_alpha", "logits_processor", "logits_processors", "custom_logit_processor",
            "watermarking_config", "watermark", "lora_path",
        ),
        _EMPTY,
    ),
    **dict.fromkeys(("typical_p", "typ_p", "tfs", "tfs_z"), (1,)),
    "encoder_repetition_penalty": (1,),
    "num_beams": (0, 1),
    "guidance_scale": (1,),
    "best_of": (1,),
    "do_sample": (True,),
    "truncate_prompt_tokens": (-1,),
    "top_n_sigma": (0, -1),
    "thinking_token_budget": (-1,),
    "response_format": ("text",),
    "tool_choice": ("auto", "none"),
}  # fmt: skip
"""Settings that decide the law and that no transcript has, with the values at which they are off.

An empty list or mapping is off as well. The names are those of vLLM, SGLang, llama.cpp,
transformers and of servers that take theirs.
"""
LEAST_TEMPERATURE = 0.01
"""vLLM raises lower temperatures to this one, except 0."""


def check_law(settings: Warp, engine: str, place: str = "") -> None:
    """Raise InvalidInput for settings that an engine of this name does not apply as declared.

    Engines that are not known apply all. place: the beginning of the line.
    """
    kind, name = engine_of(engine), f"{place}{engine}"
    check_off(settings, name, OFF_ALONE.get(kind or "", {}))
    if kind == "vllm" and 0 < settings.temperature < LEAST_TEMPERATURE:
        raise InvalidInput(
            f"{name}: temperature is {settings.temperature}, and vLLM would apply "
            f"{LEAST_TEMPERATURE}; allowed: 0, or from {LEAST_TEMPERATURE}"
        )
    if kind == "sglang" and settings.min_p and settings.top_k and settings.top_p < 1:
        raise InvalidInput(
            f"{name}: min_p, top_k and top_p are on, and with min_p one backend renormalises "
            "between the other two and another does not; allowed: two of them"
        )


def check_same_everywhere(settings: Warp, name: str, option: str) -> None:
    """Raise InvalidInput for settings of which engines make different laws.

    The engine of this name is not known. Engines have filters in different orders, and count
    penalties over the prompt or not, or over the last few tokens. option: the place where the user
    can say which engine does the same.
    """
    if not all(map(settings.is_as_in, FILTER_ORDERS)):
        problem = "the order in which this engine applies temperature and filters decides the law"
    elif has_penalty(settings):
        problem = "which tokens this engine's penalties count decides the law"
    else:
        return
    raise InvalidInput(
        f"{name}: {problem}, and is not known; give {option}, an engine that does the same: "
        f"{', '.join(FILTER_ORDERS)}"
    )


def has_penalty(settings: Warp) -> bool:
    """Whether a penalty is on."""
    return any(getattr(settings, name) != getattr(Warp, name) for name in PENALTIES)


def check_off(settings: Warp, name: str, reasons: Mapping[str, str]) -> None:
    """Raise InvalidInput for a setting that is on and has a reason to be off.

    name: the engine's, the beginning of the line.
    """
    for setting, reason in reasons.items():
        value, off = getattr(settings, setting), getattr(Warp, setting)
        if value != off:
            raise InvalidInput(f"{name}: {setting} is {value}, and {reason}; allowed: {off:g}")


def check_declarable(
    name: str, value: Any, settings: Warp, engine: str, length: int, place: str
) -> None:
    """Raise InvalidInput for a setting of UNDECLARABLE that is on.

    name: the key of the value, in any spelling. settings: those that are declared beside it.
    engine: its name; llama.cpp's `ignore_eos` rules ends of sequence out, while others draw and
    emit them. length: the number of tokens of the row, prompt and output. place: the beginning of
    the line.
    """
    spelling = letters_of(name)
    off = _OFF.get(spelling)
    if spelling == "ignoreeos" and engine_of(engine) == "llama.cpp":
        off = _EMPTY
    if spelling == "dosample" and settings.temperature == 0:
        off = None
    if spelling in WINDOWS and settings.repetition_penalty != Warp.repetition_penalty:
        off = (-1, value) if isinstance(value, int) and value >= length else (-1,)
    allowed = "" if off is None or _is_off(value, off) else f"{off[0]!r}, which is off"
    if spelling == SAMPLERS and not _is_usual(value, settings):
        allowed = ", ".join(_samplers(settings))
    if spelling in REQUESTS and isinstance(value, str) and any(map(value.count, SETTINGS)):
        allowed = "its settings as keys of the row"
    if allowed:
        raise InvalidInput(
            f"{place} is {ascii(value)[:60]}, which makes another law that no transcript can "
            f"declare; allowed: {allowed}, or no such key"
        )


def check_window(
    names: Iterable[str], settings: Warp, engine: str, length: int, place: str = ""
) -> None:
    """Raise InvalidInput for a row of llama.cpp whose penalty may not have applied to all of it.

    By default the penalty's window is shorter than the row. names: the keys of the row. length: the
    number of tokens of the row, prompt and output. place: the beginning of the line.
    """
    is_on = settings.repetition_penalty != Warp.repetition_penalty
    if not is_on or engine_of(engine) != "llama.cpp" or length <= LLAMA_WINDOW:
        return
    if not {*WINDOWS}.intersection(map(letters_of, names)):
        raise InvalidInput(
            f"{place}{engine}: repetition_penalty is {settings.repetition_penalty:g}, and no key "
            f"says that it applied to all {length} tokens of the row (by default to the last "
            f"{LLAMA_WINDOW}); allowed: {WINDOW}, -1 or from {length}"
        )


WINDOW = "repeat_last_n"
WINDOWS = ("repeatlastn", "penaltylastn", "repetitioncontextsize", "penaltyrange")
WINDOWS += ("repetitionrange", "repetitionpenaltyrange", "reppenrange")
"""Names of the number of last tokens to which penalties apply, in llama.cpp -1 for all."""
LLAMA_WINDOW = 64
"""The number that llama.cpp takes if a request says nothing."""
SAMPLERS = "samplers"
OTHER_SAMPLERS = ("dry", "top_n_sigma", "typ_p", "typical_p", "xtc")
"""Samplers of llama.cpp that do nothing unless settings of UNDECLARABLE are on."""
REQUESTS = ("samplingparams", "samplingparameters", "generationconfig", "params", "parameters")
"""Keys under which rows have a request's settings."""


def _samplers(settings: Warp) -> list[str]:
    """The samplers of llama.cpp that make the law of the settings, in order."""
    return ["penalties", *chain.from_iterable(FILTER_ORDERS[settings.filter_order])]


def _is_usual(samplers: Any, settings: Warp) -> bool:
    """Whether a list has the samplers of `_samplers` that are on, in order, and no unknown one."""
    usual = _samplers(settings)
    if not isinstance(samplers, list | tuple) or {*samplers}.difference(usual, OTHER_SAMPLERS):
        return False
    order = [name for name in samplers if name in usual]
    are_on = {name for name in usual[1:] if getattr(settings, name) != getattr(Warp, name)}
    if settings.repetition_penalty != Warp.repetition_penalty:
        are_on.add(usual[0])
    return order == [name for name in usual if name in order] and are_on <= set(order)


_OFF = {letters_of(name): off for name, off in UNDECLARABLE.items()}


def _is_off(value: Any, off: tuple[Any, ...]) -> bool:
    """Whether a value is one of these, None, or a list or mapping of nothing else."""
    if isinstance(value, Mapping):
        return all(_is_off(one, (*off, 0)) for one in value.values())
    return value is None or value == [] or value in off
