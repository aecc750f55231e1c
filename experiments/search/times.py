"""Times of both models' forwards, which decide which tree is the fastest on a machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.cells import Cell
from experiments.configuration.build import build
from experiments.provenance import provenance
from experiments.worker import Report
from resispec.files import locked
from resispec.models import Model, Pair, extend
from resispec.timing import now
from resispec.trees.search import Times

LEVEL_WIDTH = 16  # nodes in the draft forward that is timed: about a level of these trees
REPEATS = 15


def load_pair(cell: Cell) -> Pair:
    """The pair of a cell, with as many threads as its forwards get."""
    if cell.config["num_threads"] is not None:
        torch.set_num_threads(cell.config["num_threads"])
    pair: Pair = build(cell.config["pair"])
    return pair


def measure_times(pair: Pair, cell: Cell, sizes: Sequence[int], report: Report) -> Times:
    """Median seconds of forwards after a prompt: of the target over every size, of the draft over a level.

    cell: says how long its prompts are, and where its results go. sizes: numbers of positions; 1 is always
    timed, too. Of the searches for one results folder only one times forwards at a time.
    """
    what, past = "times of forwards", cell.config["prompt_tokens"]
    wanted, target_s = sorted({1, *sizes}), {}
    folder = Path(cell.config["results"])
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".times.lock", lambda: report(what, 0, len(wanted) + 1)):
        for done, size in enumerate(wanted):
            report(what, done, len(wanted) + 1)
            target_s[size] = _forward_s(pair.target, past, size)
        report(what, len(wanted), len(wanted) + 1)
        return Times(target_s, _forward_s(pair.draft_model(), past, LEVEL_WIDTH))


@torch.inference_mode()
def _forward_s(model: Model, past: int, count: int) -> float:
    session = model.session(past + count)
    extend(session, [0] * past, model.device)
    seconds = []
    for _ in range(REPEATS):
        started = now(model.device)
        model.head(extend(session, [0] * count, model.device))
        seconds.append(now(model.device) - started)
        session.keep(past, ())
    return statistics.median(seconds)


def seconds_of(times: Times) -> dict[str, Any]:
    """Measured times in seconds, for a map's `about`."""
    return {
        "target_s": {str(size): float(f"{seconds:.3g}") for size, seconds in times.target_s.items()},
        "draft_s": float(f"{times.draft_s:.3g}"),
    }


def source_of(pair: Pair) -> dict[str, Any]:
    """The hardware and the code, for a map's `about`."""
    facts = provenance(pair.target.device)
    return {name: facts[name] for name in ("device", "git_commit", "git_is_dirty", "started")}
