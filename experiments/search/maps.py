"""What the searches for grow maps share: which maps a command line names, the cells that they measure, times of forwards."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from experiments.cells import Cell, plan
from experiments.provenance import provenance
from experiments.run import CellFailed, run_cell
from resispec.trees import grow_map
from resispec.errors import InvalidInput
from resispec.models import Model, Pair, extend
from resispec.record import read_rows, read_status
from resispec.timing import now
from resispec.trees.search import Times

LEVEL_WIDTH = 16  # nodes in the draft forward that is timed: about a level of these trees
REPEATS = 15
# What a measuring cell replaces in the command line of the cells that want its map.
REPLACED = ("task", "tree", "decoder", "verifier", "audit", "first_prompt", "num_prompts", "warmup_prompts")
BEST = "best"  # options of `tree` that begin so are maps of experiments.search.best_shape, all others of experiments.search.grow_map

Make = Callable[[Path, list[Cell], argparse.Namespace], None]


def run_command(parser: argparse.ArgumentParser, are_best: bool, implied: Sequence[str], make: Make) -> int:
    """Make every map that a command line's cells name; 1, with one line, for invalid input or a failed measurement.

    are_best: which maps, see `BEST`. implied: overrides that hold where neither their group nor an experiment is given.
    make: gets a map's path, the cells that name it and the parsed options.
    """
    parser.add_argument("overrides", nargs="*", help="as for experiments.run")
    chosen = parser.parse_intermixed_args()
    try:
        maps = by_path([*_still_implied(implied, chosen.overrides), *chosen.overrides], are_best)
        if not maps:
            names = f"{BEST}_16, {BEST}_64, {BEST}_121" if are_best else "growmap, growmap_64, growmap_121"
            raise InvalidInput(
                f"no cell of this command line uses a map that is made here; allowed: tree={names}"
            )
        for path, cells in maps.items():
            make(path, cells, chosen)
    except (InvalidInput, CellFailed) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("error: stopped; finished maps stay, and the same command goes on with the others\n")
        return 1
    return 0


def _still_implied(implied: Sequence[str], overrides: Sequence[str]) -> list[str]:
    given = {override.split("=")[0] for override in overrides}
    return [override for override in implied if not given & {"experiment", override.split("=")[0]}]


def by_path(overrides: Sequence[str], are_best: bool) -> dict[Path, list[Cell]]:
    """The cells of a command line by the grow map in our format that they use, which may not exist yet."""
    found: dict[Path, list[Cell]] = {}
    for cell in plan(overrides):
        if (
            "tree" in cell.labels
            and _is_map(cell.config["tree"])
            and cell.labels["tree"].startswith(BEST) == are_best
        ):
            found.setdefault(Path(cell.config["tree"]["path"]), []).append(cell)
    return found


def _is_map(tree: dict[str, Any]) -> bool:
    return tree["_target_"] == "resispec.trees.grow_map.load" and Path(tree["path"]).suffix == ".json"


def measuring_cell(cell: Cell, overrides: Sequence[str], replaced: Mapping[str, Any]) -> Cell:
    """The cell that measures something for a map: pair, data set and temperature of a cell that wants it, and other documents.

    overrides: of that cell's command line. replaced: what takes the place of its `REPLACED` choices, `first_prompt` counted from
    the first document that is for choosing trees.
    """
    kept = [
        override
        for override in overrides
        if override.split("=")[0].split(".")[0] not in (*REPLACED, "experiment")
    ]
    axes = {name: cell.labels[name] for name in ("pair", "dataset", "temperature")}
    given = {override.split("=")[0] for override in kept}
    first = cell.config["first_tuning_prompt"] + replaced["first_prompt"]
    wanted = {**axes, "tree": "root", "warmup_prompts": 0, **replaced, "first_prompt": first}
    fixed = [f"{name}={value}" for name, value in wanted.items() if name not in given]
    found = [
        other
        for other in plan([*kept, *fixed])
        if all(other.labels[name] == value for name, value in axes.items())
    ]
    return found[0]


def measured_rows(cell: Cell, purpose: str) -> list[dict[str, Any]]:
    """The rows of a cell, which is run if it is not complete. Raises CellFailed with its reason."""
    if read_status(cell.folder)["state"] != "done":
        sys.stderr.write(f"{cell}: {purpose}\n")
        run_cell(cell)
    return read_rows(cell.folder)


def mean_and_error(
    rows: Sequence[dict[str, Any]], name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means over contexts, and their standard errors over prompts, of a list that rows hold as sums over contexts."""
    sums, counts = np.array([row[name] for row in rows]), np.array([row["num_contexts"] for row in rows])
    mean = sums.sum(0) / counts.sum()
    deviations = sums - counts[:, None] * mean
    return mean, np.sqrt((deviations**2).sum(0) * len(rows) / max(1, len(rows) - 1)) / counts.sum()


def measure_times(pair: Pair, prompt_tokens: int, sizes: Sequence[int]) -> Times:
    """Median seconds of the target's forward over each number of positions, and of the draft's over a level, after a prompt."""
    bar = tqdm(sorted({1, *sizes}), desc="times of forwards", unit="size", dynamic_ncols=True)
    target_s = {size: _forward_s(pair.target, prompt_tokens, size) for size in bar}
    return Times(target_s, _forward_s(pair.draft_model(), prompt_tokens, LEVEL_WIDTH))


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


def is_made(path: Path, what: str, value: Any) -> bool:
    """Whether a map exists whose `about` has this entry, which is said to people."""
    found = grow_map.about(path).get(what) == value
    if found:
        sys.stderr.write(f"{path}: made from the same measurement already\n")
    return found
