"""vLLM's OpenAI-compatible server, which returns token ids with `return_token_ids`.

Parameters and answers as in vllm-project/vllm, vllm/entrypoints/openai/completion/protocol.py (commit
002032ee2b18e1f7bd924ec47b62504ba3866063), limits as in vllm/sampling_params.py (commit
00388f6573ccfcffad607b8c9ecdf341a4669ceb), acceptance as in vllm/entrypoints/generate/base/protocol.py
(`SpeculativeDecodingMetrics`, commit 022e555dbb75a9a96363a04933bfdd1f0b5b123d); read in 2026. What a request
leaves out comes from the model's generation_config.json, so nothing that decides the law is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from referee.engines import PER_STEP, Answer, acceptance_record
from referee.servers.client import Server, dig, emitted, ended, whole_number, whole_numbers
from resispec.errors import InvalidInput
from resispec.sampling import Sampling

LEAST_TEMPERATURE = 0.01
"""vLLM raises lower ones to this, but for 0."""


def connect(server: Server) -> Vllm:
    """The server's first model."""
    model = dig(server.get("/v1/models"), "data", 0, "id")
    return Vllm(server, model, dig(server.get("/version"), "version"))


@dataclass(frozen=True)
class Vllm:
    """A vLLM server, or one that speaks its format. model: the name that requests give, if any."""

    server: Server
    model: str | None
    version: str | None
    name: ClassVar[str] = "vllm"

    def check(self, settings: Sampling) -> None:
        """Raise InvalidInput for a temperature that vLLM would change."""
        if 0 < settings.temperature < LEAST_TEMPERATURE:
            raise InvalidInput(
                f"vllm: temperature is {settings.temperature}, and vLLM would apply {LEAST_TEMPERATURE}; "
                f"allowed: 0, or from {LEAST_TEMPERATURE}"
            )

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        body: dict[str, Any] = {
            **settings.by_name(),
            "prompt": list(prompt),
            "max_tokens": settings.max_new_tokens,
            "top_k": settings.top_k or -1,  # every version takes -1 for off, only late ones 0
            "seed": seed,
            "n": 1,
            "stream": False,
            "return_token_ids": True,
        }
        if self.model is not None:
            body["model"] = self.model
        content = self.server.post("/v1/completions", body)
        tokens = emitted(content, "choices", 0, "token_ids")
        read = dig(content, "choices", 0, "prompt_token_ids")
        if read not in (None, list(prompt)):
            raise InvalidInput(
                f"the server read other tokens than the prompt's: {ascii(read)[:40]} in place of "
                f"{ascii(list(prompt))[:40]}"
            )
        reason = ended(dig(content, "choices", 0, "finish_reason"))
        return Answer(
            tokens, reason, seed, _acceptance(dig(content, "metrics", "speculative_decoding"), tokens)
        )


def _acceptance(metrics: Any, tokens: Sequence[int]) -> Mapping[str, Any]:
    """Acceptance as told by a server that runs with --per-request-spec-decode-metrics summary or detailed."""
    histogram = whole_numbers(metrics, "acceptance_histogram")
    drafted = whole_number(metrics, "num_draft_tokens")
    per_step = {name: found for name in PER_STEP if (found := whole_numbers(metrics, name)) is not None}
    most = whole_number(metrics, "num_spec_tokens")
    record = acceptance_record("vllm", histogram, drafted, most, len(tokens), per_step)
    return {"spec_decode": record} if record else {}
