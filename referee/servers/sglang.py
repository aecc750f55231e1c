"""SGLang's own endpoint, /generate, which takes and returns token ids.

Parameters as in sgl-project/sglang, python/sglang/srt/sampling/sampling_params.py (commit
00c17cafcb9e289d5ca97c50e44ada54e4fd5b03), answers and acceptance as in srt/managers/tokenizer_manager.py
(commit 001067fffe33427bee0ed2f007fb7551a1d76b44); read in 2026. `output_ids` end with the token that stopped
the request. A request's seed is used only by a server that runs with --enable-deterministic-inference
(srt/sampling/sampling_batch_info.py); the others draw from one stream for all requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from referee.engines import Answer, acceptance_record, require_off
from referee.servers.client import Server, check_length, dig, emitted, ended, whole_number, whole_numbers
from resispec.sampling import Sampling

_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")  # the later name first
_DRAFTED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
# srt/sampling/penaltylib/repetition_penalty.py, commit 00731f0bc9fa81c39802754fb4b62e9cce967582
_OTHERWISE = "SGLang's counts emitted tokens alone, a transcript's the prompt's as well"


def connect(server: Server) -> Sglang:
    """The server, asked for its version and whether it has seeds."""
    info = server.get("/server_info") or server.get("/get_server_info")  # the later name first
    return Sglang(server, dig(info, "version"), dig(info, "enable_deterministic_inference") is True)


@dataclass(frozen=True)
class Sglang:
    """An SGLang server. has_seeds: whether it uses the seed of a request."""

    server: Server
    version: str | None
    has_seeds: bool
    name: ClassVar[str] = "sglang"

    def check(self, settings: Sampling) -> None:
        """Raise InvalidInput for a penalty that SGLang defines in another way."""
        require_off(self.name, settings, {"repetition_penalty": _OTHERWISE})

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        sampling = {
            **settings.by_name(),
            "max_new_tokens": settings.max_new_tokens,
            "top_k": settings.top_k or -1,  # 0 is refused
            "n": 1,
            **({"sampling_seed": seed} if self.has_seeds else {}),
        }
        body = {"input_ids": list(prompt), "sampling_params": sampling, "stream": False}
        content = self.server.post("/generate", body)
        tokens = emitted(content, "output_ids")
        about = dig(content, "meta_info")
        check_length(prompt, whole_number(about, "prompt_tokens"))
        reason = ended(dig(about, "finish_reason", "type"))
        return Answer(tokens, reason, seed if self.has_seeds else None, _acceptance(about, tokens))


def _acceptance(about: Any, tokens: Sequence[int]) -> Mapping[str, Any]:
    """Acceptance as told by a server that decodes speculatively."""
    histograms = (whole_numbers(about, name) for name in _HISTOGRAMS)
    numbers = (whole_number(about, name) for name in _DRAFTED)
    histogram = next((found for found in histograms if found is not None), None)
    drafted = next((found for found in numbers if found is not None), None)
    record = acceptance_record("sglang", histogram, drafted, completion_tokens=len(tokens))
    return {"spec_decode": record} if record else {}
