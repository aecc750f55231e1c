"""Search for the best shape for verification from the leaves up: `python -m experiments.search.best_shape [OPTIONS] OVERRIDES...`.

    python -m experiments.search.best_shape tree=best_121 temperature=0.6                 # most tokens a step from 121 nodes
    python -m experiments.search.best_shape tree=best_121 decoder=sequoia                 # the same without replacement
    python -m experiments.search.best_shape tree=best_121 --by time                       # fewest seconds a token on this machine
    python -m experiments.search.best_shape experiment=frontier_best                      # every map that a sweep names

The overrides are those of `experiments.run`. For every map named best_N that their cells use: compute the expected tokens of
candidate shapes from laws, all candidates on the same drafted trees, over all data sets of the cells that name the map. The
decoder's draws say which verifier counts and which shapes are candidates (`experiments.search.stages.SEARCHES`). Independent
draws: first regular shapes are compared, then, in rounds, the best of every number of levels and the neighbours of those that
are the fastest at some ratio of the two models' times. Draws that have an order: the trees of Sequoia's search. More contexts
decide between the best two of every number of levels, and the winners are measured again on documents that no choice has seen,
which is what the map says of them. Every comparison is a cell of its own, kept and resumed like any other; none reads documents
that the cells measure.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch

from experiments.cells import Cell
from experiments.search.maps import is_made, measure_times, run_command, seconds_of, source_of
from experiments.search.stages import DECISION, FINAL, Found, Stages, fastest, leaders, widths
from experiments.worker import build
from resispec.trees import grow_map
from resispec.trees import Topology
from resispec.trees.search import Times


def main() -> int:
    """Make every map that is missing; 1, with one line, for invalid input or a failed measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--levels", type=int, default=14, help="the most levels, the root counted")
    parser.add_argument(
        "--prompts", type=int, default=45, help="documents of every data set, split over the stages"
    )
    parser.add_argument(
        "--by",
        choices=("tokens", "time"),
        default="tokens",
        help="most tokens a step, or fewest seconds a token",
    )
    return run_command(parser, are_best=True, implied=[], make=_make)


def _make(path: Path, cells: list[Cell], chosen: argparse.Namespace) -> None:
    stages = Stages(cells, chosen)
    config, labels = cells[0].config, cells[0].labels
    made_from = [chosen.by, *(cell.cell_id for cell in stages.search.first(stages))]
    if is_made(path, "made_from", made_from):
        return
    decided = leaders(stages.compare(DECISION, stages.search.shapes(stages)))
    if config["num_threads"] is not None:
        torch.set_num_threads(config["num_threads"])
    pair = build(config["pair"])
    times = measure_times(pair, config["prompt_tokens"], (stages.num_nodes,))
    best = max(
        decided,
        key=lambda shape: (
            decided[shape].tokens if chosen.by == "tokens" else -s_per_token(shape, decided, times)
        ),
    )
    final = stages.compare(FINAL, list(decided))
    about = {
        "made_from": made_from, "pair": labels["pair"], "temperature": labels["temperature"],
        "datasets": sorted({cell.labels["dataset"] for cell in cells}), "draws": stages.draws.value,
        "verifier": stages.search.verifier, **summary(best, final, times), **source_of(pair),
    }  # fmt: skip
    grow_map.save(best, path, about)
    value = final[best]
    sys.stderr.write(
        f"{path}: levels of {(1, *widths(best))}; {value.tokens:.2f} tokens expected a step (standard error {value.error:.2f})\n"
    )


def s_per_token(shape: Topology, found: Found, times: Times) -> float:
    """Expected seconds a token: a draft forward for every level below the root, and a forward of the target."""
    return ((shape.num_levels - 1) * times.draft_s + times.target_s[shape.num_nodes]) / found[shape].tokens


def summary(best: Topology, final: Found, times: Times) -> dict[str, Any]:
    """What the final measurement says of a shape and of the best of every number of levels; levels count the root.

    fastest_up_to_ratio: numbers of levels by rising ratio of a draft forward to a target forward; the last one has no end.
    """

    def facts(shape: Topology) -> dict[str, Any]:
        return {
            "widths": list(widths(shape)),
            "expected_tokens": round(final[shape].tokens, 4),
            "standard_error": round(final[shape].error, 4),
            "s_per_token": float(f"{s_per_token(shape, final, times):.3g}"),
        }

    return {
        "num_levels": best.num_levels,
        **facts(best),
        "frontier": {str(shape.num_levels): facts(shape) for shape in final},
        "fastest_up_to_ratio": {
            str(shape.num_levels): None if math.isinf(ratio) else round(ratio, 4)
            for shape, ratio in fastest(final).items()
        },
        **seconds_of(times),
    }


if __name__ == "__main__":
    sys.exit(main())
