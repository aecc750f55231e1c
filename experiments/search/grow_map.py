"""Search for grow maps: `python -m experiments.search.grow_map [--levels D] [--prompts N] OVERRIDES...`.

    python -m experiments.search.grow_map tree=growmap_64 dataset=embedded_code temperature=0.6   # 64 nodes, the best levels
    python -m experiments.search.grow_map tree=growmap tree.path=best.json                        # the best number of nodes, too
    python -m experiments.search.grow_map experiment=table2_sequoia                               # every map that a sweep names

The overrides are those of `experiments.run`. For every map that their cells name: measure on the pair how often a node's first,
second, ... child is accepted (a cell of its own, kept and resumed like any other, on documents that the cells do not measure) and
how long both models' forwards take, find the tree with the fewest expected seconds a token, and write it, the acceptance
vector beside it. A map that exists and was made from the same measurement is kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from experiments.cells import Cell
from experiments.search.maps import (
    is_made,
    mean_and_error,
    measure_times,
    measured_rows,
    measuring_cell,
    run_command,
    seconds_of,
    source_of,
)
from experiments.worker import build
from resispec.trees import grow_map
from resispec.errors import InvalidInput
from resispec.models import Pair
from resispec.record import write_atomically
from resispec.trees.search import Choice, Times, choose, search

SIZES = (2, 4, 8, 16, 32, 64, 128)  # numbers of nodes that are tried where the map's is not given


def main() -> int:
    """Make every map that is missing; 1, with one line, for invalid input or a failed measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--levels", type=int, default=12, help="the most levels, the root counted")
    parser.add_argument("--prompts", type=int, default=48, help="documents on which acceptance is measured")
    return run_command(parser, are_best=False, implied=["decoder=sequoia"], make=_make)


def _make(path: Path, cells: list[Cell], chosen: argparse.Namespace) -> None:
    cell = cells[0]
    num_nodes = cell.config["tree"]["num_nodes"]
    if num_nodes is not None and num_nodes < 1:
        raise InvalidInput(f"tree.num_nodes is {num_nodes}; allowed: from 1, or null for the fastest size")
    replaced = {
        "task": "acceptance",
        "decoder": "sequoia",
        "verifier": "standard",
        "first_prompt": 0,
        "num_prompts": chosen.prompts,
    }
    measured = measuring_cell(cell, chosen.overrides, replaced)
    if is_made(path, "acceptance_cell", measured.cell_id):
        return
    vector = acceptance(measured)
    config, labels = cell.config, cell.labels
    if config["num_threads"] is not None:
        torch.set_num_threads(config["num_threads"])
    pair: Pair = build(config["pair"])
    times = measure_times(pair, config["prompt_tokens"], SIZES if num_nodes is None else (num_nodes,))
    plans = search(vector.probability.tolist(), max(times.target_s), chosen.levels)
    found = choose(plans, times, num_nodes)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "acceptance_cell": measured.cell_id,
        **labels_of(labels),
        **summary(found, times),
        **source_of(pair),
    }
    beside = path.with_name(f"{labels['pair']}.{labels['dataset']}.T{labels['temperature']}.acceptance.csv")
    write_atomically(beside, _commented(about) + vector.to_csv(index=False, float_format="%.6f"))
    grow_map.save(found.topology, path, about)
    sys.stderr.write(f"{path}: {describe(found)}\n")


def acceptance(cell: Cell) -> pd.DataFrame:
    """The acceptance vector of a cell: position, probability, standard_error (over prompts), by draw order from 1."""
    probability, error = mean_and_error(measured_rows(cell, "acceptance of siblings"), "selected")
    positions = range(1, len(probability) + 1)
    return pd.DataFrame({"position": positions, "probability": probability, "standard_error": error})


def labels_of(labels: dict[str, Any]) -> dict[str, Any]:
    """What a map is for."""
    return {name: labels[name] for name in ("pair", "dataset", "temperature")}


def summary(found: Choice, times: Times) -> dict[str, Any]:
    """What the search expects of a map, and the times that it is the best for; times in seconds."""
    return {
        "num_levels": found.topology.num_levels,
        "expected_tokens": round(found.expected_tokens, 4),
        "expected_speedup": round(found.speedup, 3),
        **seconds_of(times),
    }


def describe(found: Choice) -> str:
    """One line for people."""
    widths = ", ".join(str(len(level)) for level in found.topology.levels)
    return (
        f"{found.topology.num_nodes} nodes in levels of {widths}; {found.expected_tokens:.2f} tokens expected a step, "
        f"{found.speedup:.2f} times autoregressive decoding by the measured forwards alone"
    )


def _commented(about: dict[str, Any]) -> str:
    """Provenance as comment lines of a CSV (`pandas.read_csv(path, comment="#")`); what belongs to one map is left out."""
    names = (
        "acceptance_cell",
        "pair",
        "dataset",
        "temperature",
        "device",
        "git_commit",
        "git_is_dirty",
        "started",
    )
    return "".join(f"# {name}: {about[name]}\n" for name in names)


if __name__ == "__main__":
    sys.exit(main())
