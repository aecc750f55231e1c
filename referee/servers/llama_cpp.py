"""llama.cpp's server at its own endpoint, /completion, which returns token ids with `return_tokens`.

Parameters and answers as in ggml-org/llama.cpp, tools/server/README.md (commit
00dc8057ab28c9cb4c79a6dd6dfce07fe779f63b) and tools/server/server-task.cpp (commit
00efb3e184262872916bf136b3df63c1822a19bd); read in 2026. Samplers are applied in the order of the request, and
those that it does not name are not applied; the server's defaults are top_k 40, top_p 0.95, min_p 0.05 and a
temperature of 0.8. The answer repeats the settings, so what was applied is compared with what was asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from referee.engines import Answer, require_off
from referee.servers.client import Server, check_length, dig, emitted, ended, whole_number
from resispec.errors import InvalidInput
from resispec.sampling import Sampling

SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""In the order of transformers, which is that of a transcript."""
_OTHERWISE = dict.fromkeys(
    ("presence_penalty", "frequency_penalty"),
    "llama.cpp's counts the prompt's tokens as well, a transcript's emitted tokens alone",
)
_REASONS = {"eos": "stop", "word": "stop", "limit": "length"}


def connect(server: Server) -> LlamaCpp:
    """The server, asked for its build."""
    return LlamaCpp(server, dig(server.get("/props"), "build_info"))


@dataclass(frozen=True)
class LlamaCpp:
    """A server of llama.cpp."""

    server: Server
    version: str | None
    name: ClassVar[str] = "llama_cpp"

    def check(self, settings: Sampling) -> None:
        """Raise InvalidInput for penalties that llama.cpp defines in another way."""
        require_off(self.name, settings, _OTHERWISE)

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        law = settings.by_name()
        asked = {
            "repeat_penalty": law.pop("repetition_penalty"),
            **law,
            "repeat_last_n": len(prompt) + settings.max_new_tokens,  # the whole prompt, as in transformers
            "seed": seed,
            "samplers": list(SAMPLERS),
            "dynatemp_range": 0.0,
            "mirostat": 0,
            "ignore_eos": False,
            "logit_bias": [],
        }
        about = {"n_predict": settings.max_new_tokens, "return_tokens": True, "stream": False}
        content = self.server.post("/completion", {**asked, **about, "prompt": list(prompt)})
        tokens = emitted(content, "tokens")
        check_length(prompt, whole_number(content, "tokens_evaluated"))
        _check_applied(dig(content, "generation_settings"), asked)
        if dig(content, "truncated"):
            raise InvalidInput(
                f"the server's context ended within an answer to {len(prompt)} tokens; "
                "give it a larger one (-c), or ask for fewer new tokens"
            )
        reason = ended(_REASONS.get(dig(content, "stop_type")))
        return Answer(tokens, reason, seed, _acceptance(dig(content, "timings"), tokens))


def _check_applied(applied: Any, asked: Mapping[str, Any]) -> None:
    """Raise InvalidInput when what a server says it applied is not what was asked for."""
    for name, value in asked.items():
        found = dig(applied, name)
        is_number = isinstance(found, int | float) and isinstance(value, int | float)
        is_same = math.isclose(found, value, rel_tol=1e-5) if is_number else found in (None, value)
        if not is_same:
            raise InvalidInput(f"the server applied {name} {found!r} where {value!r} was asked for")
    if dig(applied, "grammar"):
        raise InvalidInput("the server applies a grammar of its own, which no transcript can declare")


def _acceptance(timings: Any, tokens: Sequence[int]) -> Mapping[str, Any]:
    """Acceptance as told by a server with a draft: no steps, so other fields of AIPerf are left out."""
    drafted, accepted = whole_number(timings, "draft_n"), whole_number(timings, "draft_n_accepted")
    if drafted is None or accepted is None:
        return {}
    record = {
        "engine": "llamacpp",
        "draft_acceptance_rate": accepted / max(1, drafted),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "completion_tokens": len(tokens),
    }
    return {"spec_decode": record}
