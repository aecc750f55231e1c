"""Formats of servers: requests for token ids, and where answers hold a transcript's values.

They were read in 2026, in the repositories vllm-project/vllm, sgl-project/sglang and
ggml-org/llama.cpp, in the files that the classes name. Settings that a request leaves out come from
the server or from the model's generation_config.json, so a request leaves out nothing that decides
the law.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from referee.engine_laws import WINDOW
from referee.engines.base import Answer, Engine, Unanswered, acceptance, drawn_again
from resispec.errors import InvalidInput, printable
from resispec.sampling import FILTER_ORDERS, Sampling

if TYPE_CHECKING:
    from referee.servers.client import Server


Served = tuple[list[float | None], list[list[tuple[int, float]]]]
"""For each token its log-probability, and pairs of id and log-probability."""
SEEDED = ("vllm", "llamacpp")
"""Servers of OpenAI's format that use a request's seed, as they name themselves."""


class ServedEngine(Engine):
    """An engine behind a server; subclasses are formats, whose `__init__` asks for its version.

    A subclass has `body(prompt, settings, seed)`, the request, and `acceptance(content,
    num_tokens)`, the acceptance that an answer reports, see `referee.engines.base.acceptance`. One
    with `serves_logprobs` has `asking(number)`, what a request has in addition for that many
    log-probabilities at each place, and `served(content, tokens)`, the pair of lists that an answer
    has: for each token its log-probability, and pairs of id and log-probability, none where it says
    nothing.

    path: that of the endpoint. tokens, read, reason: the keys in an answer of the emitted ids, of
    the prompt as the server read it (ids or their number), and of the reason why it ended; reasons:
    for each reason with another name in transcripts, that name. num_read, num_emitted: the keys of
    the server's own counts of both; slack: by how much the second may differ behind an end of
    sequence, which not every server counts. has_seeds: whether the server uses the seed of a
    request. window: the keys of a row with a penalty that say how many tokens it applied to.
    takes_model: whether `__init__` takes the name of one of several models.
    """

    path: str
    tokens: tuple[str | int, ...]
    read: tuple[str | int, ...]
    reason: tuple[str | int, ...]
    reasons: Mapping[str, str] = {}
    window: Mapping[str, Any] = {}
    num_read: tuple[str | int, ...] = ()
    num_emitted: tuple[str | int, ...] = ()
    slack: float = 1
    has_seeds = True
    takes_model = False

    def __init__(self, server: Server, version: str | None, model: str | None = None) -> None:
        self.server, self.version, self.model = server, version, model

    def stop(self) -> None:
        """See `Engine.stop`."""
        self.server.stop()

    def answer(self, prompt: Sequence[int], settings: Sampling, seed: int) -> Answer:
        """See `Engine.answer`."""
        body = self.body(list(prompt), settings, seed)
        if self.num_logprobs:
            body |= self.asking(self.num_logprobs)
        content = self.server.post(self.path, body, is_drawn_again=not self.has_seeds)
        if not (tokens := whole_numbers(content, *self.tokens)):
            keys, value = ".".join(map(str, self.tokens)), ascii(dig(content, *self.tokens))[:40]
            raise InvalidInput(
                f"the server returns no token ids ({keys} is {value}); its text is no substitute, "
                "since encoding text again does not give back the tokens that were emitted"
            )
        echo = dig(content, *self.read)
        if isinstance(echo, list) and echo != list(prompt):
            raise InvalidInput(
                f"the server read other tokens than the prompt's: {ascii(echo)[:40]} in place of "
                f"{ascii(list(prompt))[:40]}"
            )
        for number in (echo, whole_number(content, *self.num_read)):
            # servers that count nothing say 0
            if isinstance(number, int) and number not in (0, len(prompt)):
                raise InvalidInput(
                    f"the server read {number} tokens where the prompt has {len(prompt)}: it "
                    "shortened the prompt or put tokens before it, so a transcript would not say "
                    "what the model saw"
                )
        self.check_applied(content, body)
        word = name_in(content, *self.reason)
        if word is None or (reason := self.reasons.get(word, word)) in ("abort", "error"):
            line = f"the server gave the request up (finish reason {word!r})"
            raise Unanswered(line) if self.has_seeds else drawn_again(line)
        number = whole_number(content, *self.num_emitted) or len(tokens)
        if abs(number - len(tokens)) > (0 if reason == "length" else self.slack):
            raise InvalidInput(
                f"the server counts {number} emitted tokens and returns the ids of {len(tokens)}; "
                "a transcript needs every token, those of hidden reasoning and tool calls included"
            )
        extra = self.acceptance(content, len(tokens))
        if settings.repetition_penalty != Sampling.repetition_penalty:
            extra |= self.window
        served = self._served(content, tokens) if self.num_logprobs else ()
        return Answer(tuple(tokens), reason, seed if self.has_seeds else None, extra, *served)

    def _served(
        self, content: Any, tokens: Sequence[int]
    ) -> tuple[list[float] | None, list[list[tuple[int, float]]]]:
        """Served log-probabilities of the tokens, None if some lack it, and of the likeliest."""
        own, tops = self.served(content, tokens)
        number = sum(map(bool, tops))
        if len(tops) != len(tokens) or number * 2 < len(tokens):
            raise InvalidInput(
                f"the server returns log-probabilities for {number} of {len(tokens)} tokens, as "
                "servers do that compute none for drafted ones; leave out --logprobs"
            )
        # some formats add the emitted token to the most probable ones
        ordered = (sorted(top, key=lambda pair: -pair[1]) for top in tops)
        has_all = len(own) == len(tokens) and None not in own
        return own if has_all else None, [top[: self.num_logprobs] for top in ordered]

    def check_applied(self, content: Any, body: Mapping[str, Any]) -> None:
        """Raise InvalidInput if an answer says that settings other than `body`'s were applied."""


class OpenAi(ServedEngine):
    """An OpenAI-compatible server that returns token ids if `return_token_ids` is set, as vLLM's.

    model: the name of the one that is asked, None for the only one of /v1/models. Raises
    InvalidInput if there are several and none is named, and for a name that is not there.

    It is named as it names itself: by `owned_by` of /v1/models, else by its `Server` header, else
    "openai". It may apply filters in any order, which the rows have to say. Not every server uses
    a request's seed, and an answer does not tell, so only those of SEEDED are taken to do so.
    """

    name, path = "openai", "/v1/completions"
    serves_logprobs = True
    tokens, read = ("choices", 0, "token_ids"), ("choices", 0, "prompt_token_ids")
    reason, orders = ("choices", 0, "finish_reason"), tuple(FILTER_ORDERS)
    num_read, num_emitted = ("usage", "prompt_tokens"), ("usage", "completion_tokens")
    takes_model = True

    def __init__(self, server: Server, model: str | None = None) -> None:
        listed = list_in(server.get("/v1/models"), "data")
        models = {name: one for one in listed if isinstance(name := dig(one, "id"), str)}
        if model is None and len(models) > 1:
            raise InvalidInput(
                f"{server.url} serves several models; name one with --model: {_names(models)}"
            )
        if model is not None and models and model not in models:
            raise InvalidInput(
                f"{server.url} serves no model {ascii(model)[:100]}; allowed: {_names(models)}"
            )
        model = next(iter(models), None) if model is None else model
        try:
            version = name_in(server.get("/version"), "version")
        except Unanswered:
            raise
        except InvalidInput:  # a server may answer anything where OpenAI has no path
            version = None
        super().__init__(server, version, model)
        self.name = name_in(models, model or "", "owned_by") or self.unowned_name()
        self.has_seeds = self.name in SEEDED or isinstance(self, Vllm)
        if self.name == Vllm.name:
            self.orders = Vllm.orders

    def unowned_name(self) -> str:
        """The name of a server whose model has no owner."""
        return (self.server.software or OpenAi.name).split("/")[0]

    def body(self, prompt: list[int], settings: Sampling, seed: int) -> dict[str, Any]:
        """See `ServedEngine`."""
        return _numbers(settings) | {
            "prompt": prompt,
            "max_tokens": settings.max_new_tokens,
            "top_k": settings.top_k or -1,  # every version takes -1 for off, only late ones 0
            "seed": seed,
            "n": 1,
            "stream": False,
            "return_token_ids": True,
            **({} if self.model is None else {"model": self.model}),
        }

    def asking(self, number: int) -> dict[str, Any]:
        """See `ServedEngine`."""
        return {"logprobs": number, "return_tokens_as_token_ids": True}

    def served(self, content: Any, tokens: Sequence[int]) -> Served:
        """See `ServedEngine`; ids stand in texts like "token_id:17"."""
        found = dig(content, "choices", 0, "logprobs")
        tops = []
        for top in list_in(found, "top_logprobs"):
            pairs = top.items() if isinstance(top, dict) else ()
            tops.append(pairs_of((name.removeprefix("token_id:"), value) for name, value in pairs))
        return list_in(found, "token_logprobs"), tops

    def acceptance(self, content: Any, num_tokens: int) -> dict[str, Any]:
        """See `ServedEngine`."""
        metrics = dig(content, "metrics", "speculative_decoding")
        return acceptance(
            self.name,
            whole_numbers(metrics, "acceptance_histogram"),
            whole_number(metrics, "num_draft_tokens"),
            num_spec_tokens=whole_number(metrics, "num_spec_tokens"),
            completion_tokens=num_tokens,
            per_step_accepted=whole_numbers(metrics, "per_step_accepted"),
            per_step_drafted=whole_numbers(metrics, "per_step_drafted"),
        )


class Vllm(OpenAi):
    """vLLM's OpenAI-compatible server, or one of its format, which is named as it names itself.

    Parameters and answers: vllm/entrypoints/openai/completion/protocol.py (commit
    002032ee2b18e1f7bd924ec47b62504ba3866063). Limits: vllm/sampling_params.py (commit
    00388f6573ccfcffad607b8c9ecdf341a4669ceb). Acceptance, for a server that runs with
    --per-request-spec-decode-metrics: `SpeculativeDecodingMetrics` in
    vllm/entrypoints/generate/base/protocol.py (commit 022e555dbb75a9a96363a04933bfdd1f0b5b123d).
    """

    name, orders = "vllm", ("vllm",)

    def unowned_name(self) -> str:
        """See `OpenAi`; vLLM has a version."""
        return Vllm.name if self.version else super().unowned_name()


class Sglang(ServedEngine):
    """SGLang's own endpoint; `output_ids` end with the token that stopped the request.

    Parameters: python/sglang/srt/sampling/sampling_params.py (commit
    00c17cafcb9e289d5ca97c50e44ada54e4fd5b03). Answers and acceptance:
    srt/managers/tokenizer_manager.py (commit 001067fffe33427bee0ed2f007fb7551a1d76b44). Penalty:
    srt/sampling/penaltylib/repetition_penalty.py (commit 00731f0bc9fa81c39802754fb4b62e9cce967582).
    A request's seed is used only by a server that runs with --enable-deterministic-inference
    (srt/sampling/sampling_batch_info.py); the others draw from one stream for all requests.
    """

    name, path = "sglang", "/generate"
    serves_logprobs = True
    tokens, read = ("output_ids",), ("meta_info", "prompt_tokens")
    reason = ("meta_info", "finish_reason", "type")
    num_emitted = ("meta_info", "completion_tokens")
    orders = ("sglang",)

    def __init__(self, server: Server) -> None:
        info = server.get("/server_info") or server.get("/get_server_info")  # the later name first
        super().__init__(server, name_in(info, "version"), name_in(info, "model_path"))
        self.has_seeds = dig(info, "enable_deterministic_inference") is True

    def body(self, prompt: list[int], settings: Sampling, seed: int) -> dict[str, Any]:
        """See `ServedEngine`."""
        sampling = _numbers(settings) | {
            "max_new_tokens": settings.max_new_tokens,
            "top_k": settings.top_k or -1,  # 0 is refused
            "n": 1,
            **({"sampling_seed": seed} if self.has_seeds else {}),
        }
        return {"input_ids": prompt, "sampling_params": sampling, "stream": False}

    def asking(self, number: int) -> dict[str, Any]:
        """See `ServedEngine`."""
        return {"return_logprob": True, "top_logprobs_num": number}

    def served(self, content: Any, tokens: Sequence[int]) -> Served:
        """See `ServedEngine`; entries are lists of log-probability, id and text."""
        own = list_in(content, "meta_info", "output_token_logprobs")
        tops = list_in(content, "meta_info", "output_top_logprobs")
        return (
            [dig(entry, 0) for entry in own],
            [pairs_of((dig(one, 1), dig(one, 0)) for one in list_in(top)) for top in tops],
        )

    def acceptance(self, content: Any, num_tokens: int) -> dict[str, Any]:
        """See `ServedEngine`; if a number has had several names, the latest one is tried first."""
        meta = dig(content, "meta_info")
        names = ("spec_correct_drafts_histogram", "spec_accept_histogram")
        histograms = (whole_numbers(meta, name) for name in names)
        names = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
        totals = (whole_number(meta, name) for name in names)
        numbers = (
            next((item for item in items if item is not None), None)
            for items in (histograms, totals)
        )
        return acceptance("sglang", *numbers, completion_tokens=num_tokens)


class LlamaCpp(ServedEngine):
    """llama.cpp's server at its own endpoint, whose answer repeats the settings that it applied.

    Parameters and answers: tools/server/README.md (commit 00dc8057ab28c9cb4c79a6dd6dfce07fe779f63b)
    and tools/server/server-task.cpp (commit 00efb3e184262872916bf136b3df63c1822a19bd). Samplers are
    applied in the order of the request, and samplers that it does not name are not applied.
    """

    name, path = "llama_cpp", "/completion"
    serves_logprobs = True
    window: Mapping[str, Any] = {WINDOW: -1}  # `body` asks for all
    tokens, read, reason = ("tokens",), ("tokens_evaluated",), ("stop_type",)
    reasons = {"eos": "stop", "word": "stop", "limit": "length", "none": "abort"}
    num_emitted, slack = ("tokens_predicted",), math.inf  # drafts behind an end can be counted
    orders = tuple(order for order, groups in FILTER_ORDERS.items() if max(map(len, groups)) == 1)
    DEFAULTS = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "filter_order": "llama.cpp"}
    """The server's default filters; its default temperature is 0.8."""

    def __init__(self, server: Server) -> None:
        info = server.get("/props")
        model = name_in(info, "model_alias") or name_in(info, "model_path")
        super().__init__(server, name_in(info, "build_info"), model)

    def body(self, prompt: list[int], settings: Sampling, seed: int) -> dict[str, Any]:
        """See `ServedEngine`."""
        law = _numbers(settings)
        return {
            "repeat_penalty": law.pop("repetition_penalty"),
            **law,
            WINDOW: len(prompt) + settings.max_new_tokens,  # the whole prompt, as in transformers
            "seed": seed,
            "samplers": ["penalties", *chain.from_iterable(FILTER_ORDERS[settings.filter_order])],
            "dynatemp_range": 0.0,
            "mirostat": 0,
            "ignore_eos": False,
            "logit_bias": [],
            "n_predict": settings.max_new_tokens,
            "return_tokens": True,
            "stream": False,
            "prompt": prompt,
        }

    def asking(self, number: int) -> dict[str, Any]:
        """See `ServedEngine`."""
        return {"n_probs": number, "post_sampling_probs": False}

    def served(self, content: Any, tokens: Sequence[int]) -> Served:
        """See `ServedEngine`; tokens that end within a character have no entry of their own."""
        entries = iter(list_in(content, "completion_probabilities"))
        entry = next(entries, None)
        own, tops = [], []
        for token in tokens:
            is_told = dig(entry, "id") == token
            top = list_in(entry, "top_logprobs") if is_told else []
            own.append(dig(entry, "logprob") if is_told else None)
            tops.append(pairs_of((dig(one, "id"), dig(one, "logprob")) for one in top))
            entry = next(entries, None) if is_told else entry
        return own, tops

    def check_applied(self, content: Any, body: Mapping[str, Any]) -> None:
        """See `ServedEngine`; a grammar of the server's own and a full context are refused, too."""
        settings = dig(content, "generation_settings")
        # these do not decide the law
        exceptions = ("n_predict", "return_tokens", "stream", "prompt")
        for name, value in body.items():
            echo = None if name in exceptions else dig(settings, name)
            is_number = isinstance(echo, int | float) and isinstance(value, int | float)
            if not (
                math.isclose(echo, value, rel_tol=1e-5) if is_number else echo in (None, value)
            ):
                raise InvalidInput(
                    f"the server applied {name} {ascii(echo)[:60]} where {value!r} was asked for"
                )
        if dig(settings, "grammar"):
            raise InvalidInput(
                "the server applies a grammar of its own, which no transcript can declare"
            )
        if dig(content, "truncated"):
            raise InvalidInput(
                f"the server's context ended within an answer to {len(body['prompt'])} tokens; "
                "give it a larger one (-c), or ask for fewer new tokens"
            )

    def acceptance(self, content: Any, num_tokens: int) -> dict[str, Any]:
        """See `ServedEngine`; AIPerf's other fields are left out, since no steps are reported."""
        numbers = (
            whole_number(content, "timings", name) for name in ("draft_n", "draft_n_accepted")
        )
        return acceptance("llamacpp", None, *numbers, completion_tokens=num_tokens)


FORMATS: Mapping[str, type[Any]] = {
    engine.name: engine for engine in (LlamaCpp, OpenAi, Sglang, Vllm)
}
"""The formats by name; each makes the engine behind a `Server`, or raises like `Server.get`."""


def _names(models: Mapping[str, Any]) -> str:
    """The first names of models, in one line."""
    return ", ".join(printable(name)[:100] for name in [*models][:20])


def _numbers(settings: Sampling) -> dict[str, Any]:
    """The settings of the law without the filters' order, which is no parameter of a request."""
    return {name: value for name, value in settings.by_name().items() if name != "filter_order"}


def dig(content: Any, *keys: str | int) -> Any:
    """content[k0][k1]..., or None if a key is missing."""
    for key in keys:
        try:
            content = content[key]
        except (LookupError, TypeError):
            return None
    return content


def list_in(content: Any, *keys: str | int) -> list[Any]:
    """The list under these keys, empty if there is none."""
    value = dig(content, *keys)
    return value if isinstance(value, list) else []


def pairs_of(entries: Iterable[tuple[Any, Any]]) -> list[tuple[int, float]]:
    """Ids and finite log-probabilities, of entries that may have the id as text."""
    pairs = []
    for token, value in entries:
        is_id = type(token) is int or (isinstance(token, str) and token.isdecimal())
        if is_id and isinstance(value, int | float) and math.isfinite(value):
            pairs.append((int(token), float(value)))
    return pairs


def name_in(content: Any, *keys: str | int) -> str | None:
    """The text under these keys, made `printable` and cut to 100 characters, or None."""
    text = dig(content, *keys)
    return printable(text)[:100] if isinstance(text, str) else None


def whole_number(content: Any, *keys: str | int) -> int | None:
    """The whole number from 0 under these keys, or None."""
    number = dig(content, *keys)
    return number if type(number) is int and number >= 0 else None


def whole_numbers(content: Any, *keys: str | int) -> list[int] | None:
    """The list of whole numbers from 0 under these keys, or None."""
    numbers = dig(content, *keys)
    is_list = isinstance(numbers, list) and None not in map(whole_number, numbers)
    return numbers if is_list else None
