"""Settings under which an engine emits another law than a transcript declares, by its name.

They were read in the sources that `referee.servers.formats` names; OpenVINO GenAI's was measured.
`resispec transcripts` asks for none of them, and rows that say that they applied are not read. This
module imports no torch.
"""

from collections.abc import Mapping
from typing import Final

from resispec.errors import InvalidInput
from resispec.sampling import Warp, filter_order_of

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
}
"""For engines, by the key that `filter_order_of` has for their names, the settings that must be
off, and why.
"""
LEAST_TEMPERATURE = 0.01
"""vLLM raises lower temperatures to this one, except 0."""


def check_law(settings: Warp, engine: str, place: str = "") -> None:
    """Raise InvalidInput for settings that an engine of this name does not apply as they are
    declared; engines that are not known apply all. place: the beginning of the line.
    """
    kind, name = filter_order_of(engine), f"{place}{engine}"
    check_off(settings, name, OFF_ALONE.get(kind, {}))
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


def check_off(settings: Warp, name: str, reasons: Mapping[str, str]) -> None:
    """Raise InvalidInput for a setting that is on and has a reason to be off.

    name: the engine's, the beginning of the line.
    """
    for setting, reason in reasons.items():
        value, off = getattr(settings, setting), getattr(Warp, setting)
        if value != off:
            raise InvalidInput(f"{name}: {setting} is {value}, and {reason}; allowed: {off:g}")
