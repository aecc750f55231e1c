"""Search for the tree that decodes fastest without replacement (Sequoia, arXiv 2402.12374).

    python -m experiments.run decoder=sequoia tree=growmap_64 dataset=embedded_code   # 64 nodes
    python -m experiments.run decoder=sequoia tree=growmap tree.path=best.json        # the fastest size, too

A run whose tree file is missing calls this search. It measures on the pair how often a node's first, second,
... child is accepted, finds the tree with the fewest expected seconds a token by what both models' forwards
cost on this device (experiments/costs), and writes it, the acceptance vector beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from experiments.cell import Cell, file_name
from experiments.search.tree_search import Measurements, TreeSearch, draft_model, seconds_of
from resispec.files import write_atomically
from resispec.trees import grow_map
from resispec.trees.search import choose, search

SIZES = (2, 4, 8, 16, 32, 64, 128)  # numbers of nodes that are tried where the map's is not given
DRAWS = "without_replacement"
HEAD = (
    *("acceptance_cell", "pair", "dataset", "temperature"),
    *("device", "git_commit", "git_is_dirty", "started"),
)


@dataclass(frozen=True)
class GrowMapSearch(TreeSearch):
    """The search for a file of one pair, data set and temperature."""

    num_prompts: int = 48
    num_levels: int = 12
    AGREED: ClassVar[tuple[str, ...]] = ("pair", "dataset", "temperature")

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """Refuse what cannot be searched for, before anything is measured. Raises InvalidInput."""
        super().check(path, cells)
        num_nodes = cells[0].config["tree"].get("num_nodes")
        if num_nodes is not None:
            self.check_size(num_nodes)

    def write(self, path: Path, measurements: Measurements) -> None:
        """Search, and write the map and the acceptance vector."""
        [cell] = measurements.cells
        labels = {"decoder": "sequoia", "verifier": "standard"}
        vector = measurements.acceptance(DRAWS, draft_model(DRAWS), labels)
        num_nodes = cell.config["tree"].get("num_nodes")
        sizes = SIZES if num_nodes is None else (num_nodes,)
        times = measurements.costs.model.times(sizes, measurements.length)
        searched = search([place.tokens for place in vector], max(times.target_s), self.num_levels)
        choice = choose(searched, times, num_nodes)
        about = {
            "acceptance_cell": measurements.measured[0],
            **{name: str(cell.labels[name]) for name in ("pair", "dataset")},
            "temperature": cell.labels["temperature"],
            "num_levels": choice.topology.num_levels,
            "expected_tokens": round(choice.expected_tokens, 4),
            "expected_speedup": round(choice.speedup, 3),
            **seconds_of(times),
            **measurements.source(),
        }
        names = f"{file_name(cell.labels['pair'])}.{file_name(cell.labels['dataset'])}"
        beside = path.with_name(f"{names}.T{cell.config['temperature']}.acceptance.csv")
        # Comments say where the table comes from: `pandas.read_csv(path, comment="#")`.
        lines = [*(f"# {name}: {about[name]}" for name in HEAD), "position,probability,standard_error"]
        lines += [f"{place},{value.tokens:.6f},{value.error:.6f}" for place, value in enumerate(vector, 1)]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(beside, "\n".join(lines) + "\n")
        grow_map.save(choice.topology, path, about)
