"""Search for grow maps: `python -m experiments.grow_map [--levels D] [--prompts N] OVERRIDES...`.

    python -m experiments.grow_map tree=growmap_64 dataset=embedded_code temperature=0.6   # 64 nodes, the best levels
    python -m experiments.grow_map tree=growmap tree.path=best.json                        # the best number of nodes, too
    python -m experiments.grow_map experiment=table2_sequoia                               # every map that a sweep names

The overrides are those of `experiments.run`. For every map that their cells name: measure on the pair how often a node's first,
second, ... child is accepted (a cell of its own, kept and resumed like any other, on documents that the cells do not measure) and
how long both models' forwards take, find the tree with the fewest expected seconds a token, and write it, the acceptance
vector beside it. A map that exists and was made from the same measurement is kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from experiments.cells import Cell, plan
from experiments.law_trees import draft_of
from experiments.provenance import provenance
from experiments.run import CellFailed, run_cell
from experiments.worker import build
from resispec import growmap
from resispec.errors import InvalidInput
from resispec.models import Model, Pair, extend
from resispec.record import read_status, write_atomically
from resispec.timing import now
from resispec.tree_search import Choice, Times, choose, search

SIZES = (2, 4, 8, 16, 32, 64, 128)  # numbers of nodes that are tried where the map's is not given
LEVEL_WIDTH = 16  # nodes in the draft forward that is timed: about a level of these trees
REPEATS = 15
# What the acceptance cell replaces in the command line of the cells that want its map.
REPLACED = ("task", "tree", "decoder", "verifier", "audit", "first_prompt", "num_prompts", "warmup_prompts")


def main() -> int:
    """Make every map that is missing; 1, with one line, for invalid input or a failed measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, default=12, help="the most levels, the root counted")
    parser.add_argument("--prompts", type=int, default=48, help="documents on which acceptance is measured")
    parser.add_argument("overrides", nargs="*", help="as for experiments.run")
    chosen = parser.parse_args()
    try:
        wanted = {cell.config["tree"]["path"]: cell for cell in reversed(_with_maps(chosen.overrides))}
        for path, cell in reversed(wanted.items()):
            _make(Path(path), cell, chosen)
    except (InvalidInput, CellFailed) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("error: stopped; finished maps stay, and the same command goes on with the others\n")
        return 1
    return 0


def _with_maps(overrides: Sequence[str]) -> list[Cell]:
    """The cells of a command line that use a grow map in our format, which may not exist yet."""
    keys = {override.split("=")[0] for override in overrides}
    implied = [] if "experiment" in keys or "decoder" in keys else ["decoder=sequoia"]
    return [cell for cell in plan([*implied, *overrides]) if "tree" in cell.labels and _is_map(cell.config["tree"])]


def _is_map(tree: dict[str, Any]) -> bool:
    return tree["_target_"] == "resispec.growmap.load" and Path(tree["path"]).suffix == ".json"


def _make(path: Path, cell: Cell, chosen: argparse.Namespace) -> None:
    num_nodes = cell.config["tree"]["num_nodes"]
    if num_nodes is not None and num_nodes < 1:
        raise InvalidInput(f"tree.num_nodes is {num_nodes}; allowed: from 1, or null for the fastest size")
    measured = _acceptance_cell(cell, chosen)
    if path.is_file() and _about(path).get("acceptance_cell") == measured.cell_id:
        sys.stderr.write(f"{path}: made from the same measurement already\n")
        return
    if read_status(measured.folder)["state"] != "done":
        sys.stderr.write(f"{measured}: acceptance of siblings\n")
        run_cell(measured)
    vector = acceptance(measured)
    config, labels = cell.config, cell.labels
    if config["num_threads"] is not None:
        torch.set_num_threads(config["num_threads"])
    pair: Pair = build(config["pair"])
    times = measure_times(pair, config["prompt_tokens"], SIZES if num_nodes is None else (num_nodes,))
    plans = search(vector.probability.tolist(), max(times.target_s), chosen.levels)
    found = choose(plans, times, num_nodes)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"acceptance_cell": measured.cell_id, **labels_of(labels), **summary(found, times), **_source(pair)}
    beside = path.with_name(f"{labels['pair']}.{labels['dataset']}.T{labels['temperature']}.acceptance.csv")
    write_atomically(beside, _commented(about) + vector.to_csv(index=False, float_format="%.6f"))
    growmap.save(found.topology, path, about)
    sys.stderr.write(f"{path}: {describe(found)}\n")


def _acceptance_cell(cell: Cell, chosen: argparse.Namespace) -> Cell:
    """The cell that measures acceptance for a map: the same models and data set, other documents."""
    kept = [override for override in chosen.overrides if override.split("=")[0].split(".")[0] not in (*REPLACED, "experiment")]
    axes = {name: cell.labels[name] for name in ("pair", "dataset", "temperature")}
    given = {override.split("=")[0] for override in kept}
    replaced = {
        "task": "acceptance", "decoder": "sequoia", "tree": "root", "verifier": "standard", "warmup_prompts": 0,
        "first_prompt": cell.config["first_tuning_prompt"], "num_prompts": chosen.prompts,
    }  # fmt: skip
    fixed = [f"{name}={value}" for name, value in (axes | replaced).items() if name not in given]
    found = [other for other in plan([*kept, *fixed]) if all(other.labels[name] == value for name, value in axes.items())]
    return found[0]


def acceptance(cell: Cell) -> pd.DataFrame:
    """The acceptance vector of a finished cell: position, probability, standard_error (over prompts), by draw order from 1."""
    lines = (cell.folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    sums, counts = np.array([row["selected"] for row in rows]), np.array([row["num_contexts"] for row in rows])
    probability = sums.sum(0) / counts.sum()
    deviations = sums - counts[:, None] * probability
    error = np.sqrt((deviations**2).sum(0) * len(rows) / max(1, len(rows) - 1)) / counts.sum()
    positions = range(1, sums.shape[1] + 1)
    return pd.DataFrame({"position": positions, "probability": probability, "standard_error": error})


def measure_times(pair: Pair, prompt_tokens: int, sizes: Sequence[int]) -> Times:
    """Median seconds of the target's forward over each number of positions, and of the draft's over a level, after a prompt."""
    bar = tqdm(sorted({1, *sizes}), desc="times of forwards", unit="size", dynamic_ncols=True)
    target_s = {size: _forward_s(pair.target, prompt_tokens, size) for size in bar}
    return Times(target_s, _forward_s(draft_of(pair), prompt_tokens, LEVEL_WIDTH))


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


def labels_of(labels: dict[str, Any]) -> dict[str, Any]:
    """What a map is for."""
    return {name: labels[name] for name in ("pair", "dataset", "temperature")}


def summary(found: Choice, times: Times) -> dict[str, Any]:
    """What the search expects of a map, and the times that it is the best for; times in seconds."""
    return {
        "num_levels": found.topology.num_levels,
        "expected_tokens": round(found.expected_tokens, 4),
        "expected_speedup": round(found.speedup, 3),
        "target_s": {str(size): float(f"{seconds:.3g}") for size, seconds in times.target_s.items()},
        "draft_s": float(f"{times.draft_s:.3g}"),
    }


def describe(found: Choice) -> str:
    """One line for people."""
    widths = ", ".join(str(len(level)) for level in found.topology.levels)
    return (
        f"{found.topology.num_nodes} nodes in levels of {widths}; {found.expected_tokens:.2f} tokens expected a step, "
        f"{found.speedup:.2f} times autoregressive decoding by the measured forwards alone"
    )


def _source(pair: Pair) -> dict[str, Any]:
    """The hardware and the code."""
    facts = provenance(pair.target.device)
    return {name: facts[name] for name in ("device", "git_commit", "git_is_dirty", "started")}


def _about(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return dict(content.get("about", {})) if isinstance(content, dict) else {}


def _commented(about: dict[str, Any]) -> str:
    """Provenance as comment lines of a CSV (`pandas.read_csv(path, comment="#")`); what belongs to one map is left out."""
    names = ("acceptance_cell", "pair", "dataset", "temperature", "device", "git_commit", "git_is_dirty", "started")
    return "".join(f"# {name}: {about[name]}\n" for name in names)


if __name__ == "__main__":
    sys.exit(main())
