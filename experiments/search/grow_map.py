"""Search for the tree that decodes fastest without replacement (Sequoia, arXiv 2402.12374).

    python -m experiments.run decoder=sequoia tree=growmap_64 dataset=embedded_code   # 64 nodes
    python -m experiments.run decoder=sequoia tree=growmap tree.path=best.json        # the fastest size, too

A run whose tree file is missing calls this search. It measures on the pair how often a node's first, second,
... child is accepted (a cell of its own, kept and resumed like any other, on documents that the cells do not
measure), finds the tree with the fewest expected seconds a token by what both models' forwards cost on this
device (experiments/costs), and writes it, the acceptance vector beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.cells import Cell
from experiments.costs.record import costs_of
from experiments.search.measuring import (
    ROOT,
    acceptance_task,
    check_request,
    check_size,
    length_of,
    mean_and_error,
    measuring_cell,
    rows_of,
    seconds_of,
    source_of,
)
from resispec.errors import InvalidInput
from resispec.files import write_atomically
from resispec.trees import grow_map
from resispec.trees.search import Choice, choose, search

if TYPE_CHECKING:
    from experiments.worker import Report

SIZES = (2, 4, 8, 16, 32, 64, 128)  # numbers of nodes that are tried where the map's is not given
MEASURED_DRAWS = "without_replacement"
DECODER = {
    "_target_": "resispec.decode.Decoder",
    "drafter": {"_target_": "resispec.drafters.DraftModel", "topology": ROOT, "draws": MEASURED_DRAWS},
    "verifier": {"_target_": "resispec.verifiers.Standard"},
}


@dataclass(frozen=True)
class GrowMapSearch:
    """The search for a file of one pair, data set and temperature.

    num_prompts: documents on which acceptance is measured. num_levels: the most levels, the root counted.
    Raises InvalidInput for values out of range.
    """

    num_prompts: int = 48
    num_levels: int = 12

    def __post_init__(self) -> None:
        if self.num_prompts < 1:
            raise InvalidInput(f"search.num_prompts is {self.num_prompts}; allowed: from 1")
        if self.num_levels < 2:
            raise InvalidInput(f"search.num_levels is {self.num_levels}; allowed: from 2, the root counted")

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """Refuse what cannot be searched for, before anything is measured. Raises InvalidInput."""
        check_request(path, cells, ("pair", "dataset", "temperature"))
        num_nodes = cells[0].config["tree"].get("num_nodes")
        if num_nodes is not None:
            check_size(num_nodes, self.num_levels)

    def __call__(self, path: Path, cells: Sequence[Cell], report: Report) -> None:
        """Search, and write the map and the acceptance vector; folders are made.

        cells: those that name the file; the first one's configuration counts. Raises InvalidInput and what
        `measured` raises.
        """
        self.check(path, cells)
        cell = cells[0]
        wanted = cell.config["tree"].get("num_nodes")
        measuring = self.measuring(cell)
        vector = acceptance(rows_of([measuring], "acceptance of siblings", report))
        costs = costs_of(cell, report)
        times = costs.model.times(SIZES if wanted is None else (wanted,), length_of(cell))
        searched = search([place.probability for place in vector], max(times.target_s), self.num_levels)
        found = choose(searched, times, wanted)
        about = {
            "acceptance_cell": measuring.cell_id,
            **{name: cell.labels[name] for name in ("pair", "dataset", "temperature")},
            **summary(found),
            **seconds_of(times),
            **source_of(cell, costs),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        names = cell.config["names"]
        beside = path.with_name(
            f"{names['pair']}.{names['dataset']}.T{cell.config['temperature']}.acceptance.csv"
        )
        write_atomically(beside, _csv(vector, about))
        grow_map.save(found.topology, path, about)

    def measuring(self, cell: Cell) -> Cell:
        """The cell that measures acceptance for a cell that wants the map."""
        labels = {"decoder": "sequoia", "verifier": "standard", "task": "acceptance"}
        documents = range(self.num_prompts)
        return measuring_cell(cell, labels, documents, task=acceptance_task(MEASURED_DRAWS), decoder=DECODER)


class Place(NamedTuple):
    """How often the child at a place in draw order is the accepted one.

    position: from 1. standard_error: over prompts.
    """

    position: int
    probability: float
    standard_error: float


def acceptance(rows: Sequence[Any]) -> list[Place]:
    """The acceptance vector of measured rows."""
    pairs = zip(*mean_and_error(rows, "selected"), strict=True)
    return [Place(place, float(mean), float(error)) for place, (mean, error) in enumerate(pairs, start=1)]


def summary(found: Choice) -> dict[str, Any]:
    """What the search expects of a map."""
    return {
        "num_levels": found.topology.num_levels,
        "expected_tokens": round(found.expected_tokens, 4),
        "expected_speedup": round(found.speedup, 3),
    }


def _csv(vector: Sequence[Place], about: Mapping[str, Any]) -> str:
    """A table whose comment lines say where it comes from: `pandas.read_csv(path, comment="#")`."""
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
    lines = [*(f"# {name}: {about[name]}" for name in names), ",".join(Place._fields)]
    lines += [f"{place},{probability:.6f},{error:.6f}" for place, probability, error in vector]
    return "\n".join(lines) + "\n"
