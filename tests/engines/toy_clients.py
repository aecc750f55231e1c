"""What tests of clients share: prompts, settings, and an engine connected to a toy server."""

from __future__ import annotations

import json
from pathlib import Path

from toy_server import POSTED, ToyServer

from experiments.transcripts import formats
from experiments.transcripts.server import Patience, Server
from resispec.engines import Settings, write_transcripts

PROMPTS = [(5, 6, 7 + index) for index in range(8)]
SETTINGS = Settings(temperature=0.7, top_p=0.9, top_k=5, min_p=0.01, max_new_tokens=6)
QUICK = Patience(tries=3, first_wait_s=0.01, timeout_s=60)
ENGINES = sorted(POSTED)


def every_toy(request):
    """For a fixture with ENGINES as params: a server of each format."""
    with ToyServer(request.param, has_seeds=True) as server:
        yield server


def vllm_toy():
    """For a fixture: a server that speaks vLLM's format."""
    with ToyServer("vllm") as server:
        yield server


def connected(toy, **options):
    return formats.connect(toy.engine, Server(toy.url, QUICK, **options))


def write(toy, path: Path, prompts=PROMPTS, settings=SETTINGS, **options):
    return write_transcripts(connected(toy), prompts, settings, path, first_seed=100, **options)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
