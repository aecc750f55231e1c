"""How small an error is found: `make faults` writes results/PROFILE/power.{csv,md}."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analysis.table import Table, plain, write
from analysis.terminal import printed
from experiments.audit import settings
from experiments.auditing.material import Nodes
from experiments.cli import Point, run_single
from experiments.processes import results
from experiments.provenance import origin
from resispec.audit.simulate import MOVED, NUM_TURNS, simulate, simulated
from resispec.audit.simulation_cases import scenes, wide_laws
from resispec.audit.verdict import LEAST_P, LIMIT, SUSPICIOUS_P
from resispec.draws import Draws
from resispec.progress import progress_bar
from tests.faults.moved import (
    EvenError,
    LawMoved,
    MovedAndTold,
    ResidualMoved,
    at_depth,
    first_quarter,
    unlikely,
    where_peaked,
)

TRIES = 10
LARGE = ("single, 64 tokens", "long chain")
"""Scenes whose first measurement alone is tried: a second, four times as long, leaves no doubt."""
NUM_TUPLES = 4_000
"""The tuples of siblings at V = 32,000 in an audit."""


@dataclass(frozen=True)
class PlantedError:
    """An error, the scene that shows it, and its size: the mass moved, or a total variation."""

    error: str
    scene: str
    size: float
    make: Callable[..., Any]
    options: dict[str, Any]

    def is_found(self, seed: int) -> bool:
        """Whether an audit's simulation of this scene alone, or its estimate, finds it."""
        generator = torch.Generator().manual_seed(seed)
        made = self.make(**self.options)
        if self.scene == "law":
            nodes = Nodes([wide_laws(32_000)], [2], NUM_TUPLES)
            statistics, _ = nodes.estimates(made, Draws.IID, 2, generator)
            return statistics["total variation"].z > LIMIT
        chosen = [scene for scene in scenes(8) if scene.name == self.scene]
        is_large = self.scene in LARGE
        measure, limit = (simulate, SUSPICIOUS_P) if is_large else (simulated, LEAST_P)
        counts = measure(made, chosen, Draws.IID, NUM_TURNS, generator)
        return min(count.p_value for count in counts[self.scene].values()) < limit


def moved(
    error: str, scene: str, make: Callable[..., Any] = MovedAndTold, **options: Any
) -> PlantedError:
    """An error that moves MOVED of the mass."""
    return PlantedError(error, scene, MOVED, make, options)


PLANTED = (
    moved("to even tokens, bonus", "single, 64 tokens", inner=False),
    moved(
        "from unlikely tokens, bonus", "single, 64 tokens", inner=False, event=unlikely, away=True
    ),
    moved("to even tokens, residual", "single, 64 tokens", ResidualMoved),
    moved(
        "to the first quarter, residual", "single, 64 tokens", ResidualMoved, event=first_quarter
    ),
    moved("to even tokens, bonus behind six accepted", "long chain", inner=False),
    moved("from even tokens, behind two accepted", "long chain", where=at_depth(2), away=True),
    moved(
        "to unlikely tokens, behind five accepted", "long chain", where=at_depth(5), event=unlikely
    ),
    moved("to even tokens, where p is peaked", "peaked chain", where=where_peaked),
    *(
        PlantedError(
            "even over 2,048 tokens, bonus", "bonus, 2,048 tokens", size, EvenError, {"size": size}
        )
        for size in (0.03, 0.05, 0.1)
    ),
    *(
        PlantedError("of the law, V = 32,000", "law", size, LawMoved, {"size": size})
        for size in (0.005, 0.01, 0.015)
    ),
)


def is_found(number: int, seed: int) -> bool:
    """Whether an error is found with a seed, in a process of its own."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        return PLANTED[number].is_found(seed)


def run_power(point: Point) -> None:
    """Plant every error TRIES times, print and write how often it was found."""
    config = settings(point.overrides)[0]
    work = [(number, seed) for number in range(len(PLANTED)) for seed in range(TRIES)]
    counts = [0] * len(PLANTED)
    names = [PLANTED[number].error for number, _ in work]
    with progress_bar(total=len(work), desc="power") as bar:
        every = results(is_found, work, names, bar)
    for (number, _), found in zip(work, every, strict=True):
        counts[number] += found
    rows = [
        {"error": one.error, "scene": one.scene, "size": one.size, "found": count, "tries": TRIES}
        for one, count in zip(PLANTED, counts, strict=True)
    ]
    table = table_of(pd.DataFrame(rows), origin(torch.device(config["device"])))
    sys.stdout.write(printed(table) + "\n")
    write(table, Path(config["results"]) / config["profile"], ("csv", "md"))


def table_of(frame: pd.DataFrame, source: str) -> Table:
    """The table."""
    shown = pd.DataFrame(
        {
            "error": frame.error,
            "shown in": frame.scene,
            "mass or TV": [f"{size:g}" for size in frame["size"]],
            "found": [
                f"{found} of {tries}" for found, tries in zip(frame.found, frame.tries, strict=True)
            ],
        }
    )
    notes = (
        f"{source} Made by: make faults. Each error is planted in `verify` alone, but for those "
        "of the law, and tried with other random numbers each time, in an audit of one scene. "
        "One that moves mass to or from a set of tokens is in one place of a walk; at bonus "
        "tokens and behind accepted ones it is hidden from `outcomes`, so that only the tokens "
        f"show it. Found: biased, or in the scenes {' and '.join(LARGE)} suspicious at first, "
        "after which it is measured four times as long.",
    )
    texts = shown.set_index(["error", "shown in"])
    return plain("power", frame, "How small an error an audit finds", notes, shown=texts)


if __name__ == "__main__":
    sys.exit(run_single(run_power, "audit", ["pair"]))
