"""Costs of a step on this device: `python -m experiments.bench.costs [KEY=VALUE ...]`;
see `--help`.

Steps of some 90 configurations are timed, on a CPU in turns, round after round, and their medians
go to results/timing/DEVICE.json, where every pair has an entry; an existing entry is measured
again. Searches for trees and `tree=fastest` read the file, and measure for themselves only if it
lacks the pair. The machine should do nothing else meanwhile.
"""

import sys

from experiments.cell import Cell
from experiments.cli import Point, run_single
from experiments.costs import LEVEL_WIDTH, SIZES, costs_of, file_of
from experiments.schema import check_values
from resispec.progress import progress_bar


def run_costs(point: Point) -> None:
    """Measure costs, and print their file and the times of forwards of a few sizes."""
    config = point.values
    check_values(config)
    cell = Cell({"pair": point.choices["pair"]}, config)
    with progress_bar(desc="costs", unit="call") as bar:

        def report(what: str, done: int, count: int) -> None:
            bar.set_description(what, refresh=False)
            bar.total = count
            bar.update(done - bar.n)

        costs = costs_of(cell, report, again=True)
    length = min(config["prompt_tokens"], config["sampling"]["max_length"])
    times = costs.times(SIZES, length)
    lines = [
        f"forward of the target behind {length} tokens, head and laws included",
        *(f"{size:>4} positions: {1e3 * times.target_s[size]:8.3f} ms" for size in SIZES),
        f"forward of the draft over a level of {LEVEL_WIDTH}: {1e3 * times.draft_s:.3f} ms",
        f"written: {file_of(config)}",
    ]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    sys.exit(run_single(run_costs, "costs"))
