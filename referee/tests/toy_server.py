"""A server on this machine that speaks the formats of three engines, and engines connected to it.

Its model is known in a few lines: every token is as likely as any other. Prompts and settings for
them are here, too. `python -m referee.tests.toy_server ENGINE PORT EXTRA` serves until stopped.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import getitem
from pathlib import Path
from typing import Any

from referee.engines import write_transcripts
from referee.servers.client import Server
from referee.servers.formats import FORMATS
from resispec.sampling import Sampling

EOS, PART = 0, 11
VERSIONS = {"vllm": "0.32.0", "sglang": "0.6.1", "llama_cpp": "b9999-abcdef"}
ESCAPES = "\x1b[2J\x1b]0;mine\x07\x9b5m\u202e"
"""Characters that clear a terminal, rename it, make it blink, and reverse the text after them."""
_OK = b"HTTP/1.1 200 OK\r\n"
HOSTILE = {
    "flood": (_OK + b"\r\n", b" " * 2**16, 0),
    "packed": (_OK + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(bytes(2**20)), 0),
    "slow header": (_OK + b"X: ", b"x", 0.02),
    "silent": (b"", b"", 0.02),
}
"""Faults of a server that never stops: how it begins, what it repeats, its pauses in seconds."""
POSTED = {"vllm": "/v1/completions", "sglang": "/generate", "llama_cpp": "/completion"}


def free_port() -> int:
    """The number of a port of this machine that nothing listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def continuation(prompt: list[int], count: int, seed: int, extra: int = 0) -> list[int]:
    """Tokens of the toy model: drawn tokens until the end of the sequence or `count`.

    extra: further chances of token 3, for a faulty model.
    """
    drawn = random.Random(f"{prompt} {seed}")
    tokens: list[int] = []
    while len(tokens) < count and EOS not in tokens:
        tokens.append(drawn.choice([EOS, *range(1, 12), *[3] * extra]))
    return tokens


def logprobs(token: int, number: int) -> tuple[float, list[tuple[int, float]]]:
    """The log-probability of an emitted token, and of the most probable ones: 1, 2, ..."""
    top = [(one, -float(one)) for one in range(1, number + 1)]
    return dict(top).get(token, -20.0), top


class ToyServer:
    """Use it as a context. It takes requests in the format of one engine.

    posts: the bodies of all requests. faults: number of a request -> what goes wrong with it, a
    fault of `_Handler`. changes: values of every answer, by their keys. gathering: holds answers
    back until so many requests have come. gets: other statuses of paths. models, owner: the names
    of the models and their owner, in vLLM's format. software: the `Server` header. extra: see
    `continuation`. port: 0 for a free one.
    """

    def __init__(self, engine: str, has_seeds: bool = False, port: int = 0) -> None:
        self.engine, self.has_seeds = engine, has_seeds
        self.posts: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.faults: dict[int, str] = {}
        self.changes: dict[tuple[str | int, ...], Any] = {}
        self.gathering = threading.Barrier(1)
        self.gets: dict[str, int] = {}
        self.extra = 0
        self.models = ["toy-model"]
        self.owner: str | None = None
        self.software: str | None = None
        self.lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self._http.toy = self  # type: ignore[attr-defined]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> ToyServer:
        threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def about(self, path: str) -> dict[str, Any] | None:
        """The answer to a GET."""
        version = {"version": VERSIONS[self.engine]}
        models = [{"id": name, "owned_by": self.owner} for name in self.models]
        return {
            "vllm": {
                "/v1/models": {"data": models},
                "/version": version,
            },
            "sglang": {
                "/server_info": version | {"enable_deterministic_inference": self.has_seeds}
            },
            "llama_cpp": {"/props": {"build_info": version["version"]}},
        }[self.engine].get(path)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a POST, in the words of the engine."""
        asked = body | body.get("sampling_params", {})
        prompt = asked.get("prompt") or asked["input_ids"]
        most = next(
            asked[name] for name in ("max_tokens", "max_new_tokens", "n_predict") if name in asked
        )
        seed = asked.get("seed", asked.get("sampling_seed", random.getrandbits(32)))
        tokens = continuation(prompt, most, seed, self.extra)
        reason, stop_type = ("stop", "eos") if EOS in tokens else ("length", "limit")
        applied = {
            name: asked.get(name) for name in ("top_k", "top_p", "min_p", "samplers", "mirostat")
        }
        metrics = {
            "acceptance_histogram": [39, 1, 0, 3],
            "num_draft_tokens": 129,
            "num_spec_tokens": 3,
        }
        content: dict[str, Any] = {
            "vllm": {
                "choices": [
                    {"finish_reason": reason, "token_ids": tokens, "prompt_token_ids": prompt}
                ],
                "metrics": {"speculative_decoding": metrics},
                "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)},
            },
            "sglang": {
                "output_ids": tokens,
                "meta_info": {
                    "finish_reason": {"type": reason},
                    "prompt_tokens": len(prompt),
                    "completion_tokens": len(tokens),
                    "spec_num_proposed_drafts": 215,
                    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
                },
            },
            "llama_cpp": {
                "tokens": tokens,
                "tokens_evaluated": len(prompt),
                "tokens_predicted": len(tokens),
                "stop_type": stop_type,
                "truncated": False,
                # single precision, as llama.cpp repeats it
                "generation_settings": applied | {"temperature": asked["temperature"] * (1 - 2e-8)},
                "timings": {"draft_n": 40, "draft_n_accepted": 30},
            },
        }[self.engine]
        keys = [key for key in ("logprobs", "top_logprobs_num", "n_probs") if asked.get(key)]
        if keys:
            self._add_logprobs(content, tokens, asked[keys[0]])
        for (*keys, last), value in self.changes.items():
            reduce(getitem, keys, content)[last] = value
        return content

    def _add_logprobs(self, content: dict[str, Any], tokens: list[int], number: int) -> None:
        """Add log-probabilities in the words of the engine, the emitted token among them."""
        served = [logprobs(token, number) for token in tokens]
        if self.engine == "vllm":  # it has the emitted token even if others are likelier
            content["choices"][0]["logprobs"] = {
                "token_logprobs": [own for own, _ in served],
                "top_logprobs": [
                    {f"token_id:{token}": own, **{f"token_id:{one}": log for one, log in top}}
                    for token, (own, top) in zip(tokens, served, strict=True)
                ],
            }
        elif self.engine == "sglang":
            content["meta_info"] |= {
                "output_token_logprobs": [
                    [own, token, None] for token, (own, _) in zip(tokens, served, strict=True)
                ],
                "output_top_logprobs": [
                    [[log, one, None] for one, log in top] for _, top in served
                ],
            }
        else:  # a token that ends within a character has no entry
            content["completion_probabilities"] = [
                {
                    "id": token,
                    "logprob": own,
                    "top_logprobs": [{"id": one, "logprob": log} for one, log in top],
                }
                for token, (own, top) in zip(tokens, served, strict=True)
                if token != PART
            ]


class _Handler(BaseHTTPRequestHandler):
    """Faults: a status, "drop" (ends without an answer), "cut" (half the JSON), and HOSTILE's."""

    protocol_version = "HTTP/1.1"

    def version_string(self) -> str:
        toy: ToyServer = self.server.toy  # type: ignore[attr-defined]
        return toy.software or "toy"

    def do_GET(self) -> None:
        toy: ToyServer = self.server.toy  # type: ignore[attr-defined]
        found = toy.about(self.path)
        status = 404 if found is None else 200
        self._send(toy.gets.get(self.path, status), json.dumps(found or {"detail": "Not Found"}))

    def do_POST(self) -> None:
        toy: ToyServer = self.server.toy  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with toy.lock:
            number = len(toy.posts)
            toy.posts.append(body)
            toy.keys.append(self.headers.get("Authorization"))
        toy.gathering.wait(timeout=20)
        fault = toy.faults.get(number)
        if self.path != POSTED[toy.engine]:
            self._send(404, '{"detail": "Not Found"}')
        elif fault == "drop":
            self.close_connection = True
        elif fault in HOSTILE:
            self._go_on(*HOSTILE[fault])
        elif fault is not None and fault.isdecimal():
            self._send(int(fault), f'{{"error": {{"message": "{ESCAPES}so said the server"}}}}')
        else:
            text = json.dumps(toy.answer(body))
            self._send(200, text[: len(text) // 2] if fault == "cut" else text)

    def _go_on(self, beginning: bytes, piece: bytes, pause_s: float) -> None:
        self.close_connection = True
        with suppress(OSError):  # the client has left
            self.wfile.write(beginning)
            for _ in range(1000):
                self.wfile.write(piece)
                time.sleep(pause_s)

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


PROMPTS = [(5, 6, 7 + index) for index in range(8)]
SETTINGS = Sampling(temperature=0.7, top_k=5, min_p=0.01, max_new_tokens=6)
ENGINES = sorted(POSTED)


def connected(toy, spoken=None):
    return FORMATS[spoken or toy.engine](Server(toy.url, tries=3, first_wait_s=0.01, timeout_s=60))


def write(toy, path: Path, prompts=PROMPTS, settings=SETTINGS, **options):
    return write_transcripts(connected(toy), prompts, settings, path, first_seed=100, **options)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    with ToyServer(sys.argv[1], port=int(sys.argv[2])) as server:
        server.extra = int(sys.argv[3])
        if "plain" in sys.argv[4:]:  # it drafts nothing, in vLLM's words
            server.changes["metrics",] = {}
        threading.Event().wait()
