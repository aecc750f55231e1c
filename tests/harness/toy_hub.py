"""A small server that answers as a hub does, for as much of one as the doctor asks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "torch_dtype": "float16",
}
SHA = "a" * 40
FILES = {"config.json": 300, "model-00001-of-00002.safetensors": 600, "model-00002-of-00002.safetensors": 400}
OLD_FILES = {"config.json": 300, "pytorch_model.bin": 5000, "training_args.bin": 70}
DATA_FILES = {"1.0.0/train.parquet": 7, "3.0.0/test.parquet": 20, "3.0.0/train.parquet": 30}
REFUSED = {
    "gated": (403, "GatedRepo"),
    "gated401": (401, "GatedRepo"),
    "missing": (404, "RepoNotFound"),
    "private": (401, "RepoNotFound"),
    "token": (401, ""),
    "revision": (404, "RevisionNotFound"),
    "broken": (500, ""),
}
"""Names under "toy/" -> status and code of the refusal. Of a gated one the metadata is open."""


class _Hub(BaseHTTPRequestHandler):
    asked: list[str]

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if "toy/slow" in self.path:
            time.sleep(3)
        name = next((name for name in REFUSED if f"toy/{name}/" in f"{self.path.partition('?')[0]}/"), None)
        is_file = "/resolve/" in self.path
        if name and (is_file or not name.startswith("gated")):
            return self._send(REFUSED[name][0], {"error": "no"}, {"X-Error-Code": REFUSED[name][1]})
        if is_file:
            return self._send(200, CONFIG, {"ETag": '"1"', "X-Repo-Commit": SHA})
        files = OLD_FILES if "toy/old" in self.path else DATA_FILES if "/datasets/" in self.path else FILES
        siblings = [{"rfilename": name, "size": size} for name, size in files.items()]
        counted = {"safetensors": {"parameters": {"F16": 500}, "total": 500}} if files is FILES else {}
        return self._send(200, {"id": "toy/any", "sha": SHA, "siblings": siblings, **counted}, {})

    def _send(self, status: int, content: Any, headers: dict[str, str]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        described = {"Content-Type": "application/json", "Content-Length": len(body), **headers}
        for name, value in described.items():
            if value:
                self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def toy_hub() -> Iterator[tuple[str, list[str]]]:
    """The address of a hub that answers, and what it was asked."""
    asked: list[str] = []
    handler = type("Hub", (_Hub,), {"asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
