"""Prompts, settings, and an engine connected to a toy server, for tests of clients."""

from __future__ import annotations

import json
from pathlib import Path

from toy_server import POSTED

from referee.engines import write_transcripts
from referee.servers.client import Server
from referee.servers.formats import FORMATS
from resispec.sampling import Sampling

PROMPTS = [(5, 6, 7 + index) for index in range(8)]
SETTINGS = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.01, max_new_tokens=6)
QUICK = {"tries": 3, "first_wait_s": 0.01, "timeout_s": 60}
ENGINES = sorted(POSTED)


def connected(toy, **options):
    return FORMATS[toy.engine](Server(toy.url, **QUICK, **options))


def write(toy, path: Path, prompts=PROMPTS, settings=SETTINGS, **options):
    return write_transcripts(connected(toy), prompts, settings, path, first_seed=100, **options)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
