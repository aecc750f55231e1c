"""Search for the best shape for verification from the leaves up: `python -m experiments.best_shape [OPTIONS] OVERRIDES...`.

    python -m experiments.best_shape tree=best_121 temperature=0.6                 # most tokens a step from 121 nodes
    python -m experiments.best_shape tree=best_121 --by time                       # fewest seconds a token on this machine
    python -m experiments.best_shape experiment=frontier_best                      # every map that a sweep names

The overrides are those of `experiments.run`. For every map named best_N that their cells use: compute the expected tokens of
candidate shapes from laws, all candidates on the same drafted trees, over all data sets of the cells that name the map. First
regular shapes are compared; then, in rounds, the best of every number of levels and the neighbours of those that are the fastest
at some ratio of the two models' times. The best of every number of levels are measured again on documents that no choice has
seen, and that is what the map says of them. Every comparison is a cell of its own, kept and resumed like any other; none reads
documents that the cells measure.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.cells import Cell
from experiments.maps import (
    is_made,
    mean_and_error,
    measure_times,
    measured_rows,
    measuring_cell,
    run_command,
    seconds_of,
    source_of,
)
from experiments.shapes import Widths, neighbours, regular, unique
from experiments.worker import build
from resispec import growmap
from resispec.errors import InvalidInput
from resispec.topology import from_widths
from resispec.tree_search import Times, winners

VERIFIER = "traversal_optimal"
PER_LEVEL = 6  # regular shapes of every number of levels
FEWEST_LEVELS = 3  # a star of two levels has nothing to verify from the leaves up
FEWEST_NODES = 4
ROUNDS = (0.3, 0.15)  # by what share a level's width changes
CONTEXTS = (2, 2, 3, 8)  # contexts a document: regular shapes, the rounds, the final measurement


class Value(NamedTuple):
    """Expected tokens a step of a shape, and their standard error over prompts."""

    tokens: float
    error: float


Found = dict[Widths, Value]


class Stage:
    """Compares shapes for one map on all its data sets; every stage has documents of its own."""

    def __init__(self, cells: Sequence[Cell], chosen: argparse.Namespace) -> None:
        self._overrides, self._count = chosen.overrides, chosen.prompts // len(CONTEXTS)
        if self._count < 1:
            raise InvalidInput(f"--prompts is {chosen.prompts}; allowed: at least {len(CONTEXTS)}, one a stage")
        by_dataset = {cell.labels["dataset"]: cell for cell in cells}
        self._cells = [by_dataset[name] for name in sorted(by_dataset)]

    def cells(self, stage: int, shapes: Sequence[Widths]) -> list[Cell]:
        """The cells of a stage, one a data set."""
        widths = "[" + ",".join(f"[{','.join(map(str, shape))}]" for shape in shapes) + "]"
        replaced = {
            "task": "shapes", "task.widths": widths, "task.contexts": CONTEXTS[stage],
            "decoder": "specinfer", "verifier": VERIFIER,
            "first_prompt": stage * self._count, "num_prompts": self._count,
        }  # fmt: skip
        return [measuring_cell(cell, self._overrides, replaced) for cell in self._cells]

    def compare(self, stage: int, shapes: Sequence[Widths]) -> Found:
        """The value of every shape, over all data sets, one context counting as much as another."""
        purpose = f"{len(shapes)} shapes of {sum(shapes[0]) + 1} nodes, stage {stage + 1} of {len(CONTEXTS)}"
        rows = [row for cell in self.cells(stage, shapes) for row in measured_rows(cell, purpose)]
        values = zip(*mean_and_error(rows, "emitted"), strict=True)
        return {shape: Value(float(mean), float(error)) for shape, (mean, error) in zip(shapes, values, strict=True)}


def main() -> int:
    """Make every map that is missing; 1, with one line, for invalid input or a failed measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, default=12, help="the most levels, the root counted")
    parser.add_argument("--prompts", type=int, default=24, help="documents of every data set, split over the stages")
    parser.add_argument(
        "--by", choices=("tokens", "time"), default="tokens", help="most tokens a step, or fewest seconds a token"
    )
    return run_command(parser, are_best=True, implied=[], make=_make)


def _make(path: Path, cells: list[Cell], chosen: argparse.Namespace) -> None:
    config = cells[0].config
    num_nodes = config["tree"]["num_nodes"]
    if num_nodes is None:
        raise InvalidInput("tree.num_nodes must be given, like tree.num_nodes=121: shapes of one size are compared")
    if num_nodes < FEWEST_NODES or chosen.levels < FEWEST_LEVELS:
        raise InvalidInput(
            f"a shape of {num_nodes} nodes in up to {chosen.levels} levels; "
            f"allowed: levels from {FEWEST_LEVELS}, nodes from {FEWEST_NODES}"
        )
    stage = Stage(cells, chosen)
    shapes = regular(num_nodes, chosen.levels, PER_LEVEL)
    made_from = [chosen.by, *(cell.cell_id for cell in stage.cells(0, shapes))]
    if is_made(path, "made_from", made_from):
        return
    found = search(stage, shapes, chosen.levels)
    if config["num_threads"] is not None:
        torch.set_num_threads(config["num_threads"])
    pair = build(config["pair"])
    times = measure_times(pair, config["prompt_tokens"], (num_nodes,))
    leading = leaders(found)
    best = max(leading, key=lambda shape: found[shape].tokens if chosen.by == "tokens" else -s_per_token(shape, found, times))
    final = stage.compare(len(CONTEXTS) - 1, leading)
    about = {
        "made_from": made_from, "pair": cells[0].labels["pair"], "temperature": cells[0].labels["temperature"],
        "datasets": sorted({cell.labels["dataset"] for cell in cells}), "verifier": VERIFIER,
        **summary(best, final, times), **source_of(pair),
    }  # fmt: skip
    growmap.save(from_widths(best), path, about)
    value = final[best]
    sys.stderr.write(
        f"{path}: levels of {(1, *best)}; {value.tokens:.2f} tokens expected a step (standard error {value.error:.2f})\n"
    )


def search(stage: Stage, shapes: Sequence[Widths], most_levels: int) -> Found:
    """The values of the last round's shapes, the best of every number of levels among them."""
    found = stage.compare(0, shapes)
    for number, share in enumerate(ROUNDS, start=1):
        near = [shape for win in fastest(found) for shape in neighbours(win, share, most_levels)]
        found = stage.compare(number, unique([*leaders(found), *near]))
    return found


def leaders(found: Found) -> list[Widths]:
    """The shape of most expected tokens for every number of levels, by rising number."""
    best: dict[int, Widths] = {}
    for shape in sorted(found, key=lambda shape: found[shape].tokens):
        best[len(shape)] = shape
    return [best[depth] for depth in sorted(best)]


def fastest(found: Found) -> dict[Widths, float]:
    """The shapes that are fastest at some ratio of a draft forward to a target forward, and up to which ratio each is."""
    shapes = list(found)
    wins = winners([(len(shape) + 1, found[shape].tokens) for shape in shapes])
    return {shapes[win.index]: win.to_ratio for win in wins}


def s_per_token(widths: Widths, found: Found, times: Times) -> float:
    """Expected seconds a token: a draft forward for every level below the root, and a forward of the target."""
    return (len(widths) * times.draft_s + times.target_s[sum(widths) + 1]) / found[widths].tokens


def summary(best: Widths, final: Found, times: Times) -> dict[str, Any]:
    """What the final measurement says of a shape and of the best of every number of levels; levels count the root.

    fastest_up_to_ratio: numbers of levels by rising ratio of a draft forward to a target forward; the last one has no end.
    """

    def facts(shape: Widths) -> dict[str, Any]:
        return {
            "widths": list(shape),
            "expected_tokens": round(final[shape].tokens, 4),
            "standard_error": round(final[shape].error, 4),
            "s_per_token": float(f"{s_per_token(shape, final, times):.3g}"),
        }

    return {
        "num_levels": len(best) + 1,
        **facts(best),
        "frontier": {str(len(shape) + 1): facts(shape) for shape in final},
        "fastest_up_to_ratio": {
            str(len(shape) + 1): None if math.isinf(ratio) else round(ratio, 4) for shape, ratio in fastest(final).items()
        },
        **seconds_of(times),
    }


if __name__ == "__main__":
    sys.exit(main())
