"""Search for the topology with which the best verifier emits most tokens a step, or tokens the fastest.

    python -m experiments.run tree=best_121 verifier=traversal_optimal temperature=0.6
    python -m experiments.run tree=best_121 decoder=sequoia verifier=traversal           # without replacement
    python -m experiments.run tree=best_121 verifier=traversal_optimal search.by=time    # the fastest here

A run whose tree file is missing calls this search. It computes the expected tokens of candidate topologies
from laws, all candidates on the same drafted trees, over all data sets of the cells that name the file. The
decoder's draws say which verifier counts and which topologies are candidates
(`experiments.search.stages.KINDS`). Independent draws: first regular topologies are compared, then, in
rounds, the best of every number of levels and the neighbours of those that are the fastest at some ratio of
the two models' times. Draws that have an order: the trees of Sequoia's search. More prefixes decide between
the best two of every number of levels, and the winners are measured again on documents that no choice has
seen, which is what the file says of them. Every comparison is a cell of its own, kept and resumed like any
other; none reads documents that the cells measure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cells import Cell
from experiments.costs.record import costs_of
from experiments.search.candidates import Found, fastest, leaders, widths
from experiments.search.measuring import (
    check_documents,
    check_request,
    check_size,
    length_of,
    one_of_each_dataset,
    seconds_of,
    source_of,
)
from experiments.search.stages import DECISION, FEWEST_LEVELS, FINAL, KINDS, SHARES, Stages
from resispec.errors import InvalidInput
from resispec.trees import Topology, grow_map
from resispec.trees.search import Times

if TYPE_CHECKING:
    from experiments.worker import Report

FEWEST_NODES = 4
GOALS = ("tokens", "time")


@dataclass(frozen=True)
class BestShapeSearch:
    """The search for a file of one pair, temperature and kind of draws.

    num_prompts: documents of every data set, split over the stages. num_levels: the most levels, the root
    counted. by: "tokens" for most tokens a step, "time" for the fewest seconds a token. Raises InvalidInput
    for values out of range.
    """

    num_prompts: int = 45
    num_levels: int = 14
    by: str = "tokens"

    def __post_init__(self) -> None:
        check_documents(self.num_prompts, SHARES)
        if self.num_levels < FEWEST_LEVELS:
            raise InvalidInput(f"search.num_levels is {self.num_levels}; allowed: from {FEWEST_LEVELS}")
        if self.by not in GOALS:
            raise InvalidInput(f"search.by is {self.by!r}; allowed: {', '.join(GOALS)}")

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """Refuse what cannot be searched for, before anything is measured. Raises InvalidInput."""
        check_request(path, cells, ("pair", "temperature", "decoder"))
        config = cells[0].config
        num_nodes, draws = config["tree"].get("num_nodes"), config["decoder"].get("drafter", {}).get("draws")
        if num_nodes is None:
            raise InvalidInput(
                "tree.num_nodes must be given, like tree.num_nodes=121: shapes of one size are compared"
            )
        if num_nodes < FEWEST_NODES:
            raise InvalidInput(f"tree.num_nodes is {num_nodes}; allowed: from {FEWEST_NODES}")
        check_size(num_nodes, self.num_levels)
        if draws not in list(KINDS):
            decoder = cells[0].labels["decoder"]
            raise InvalidInput(
                f"shapes are searched for draws {', '.join(KINDS)}; decoder={decoder} has {draws}"
            )

    def __call__(self, path: Path, cells: Sequence[Cell], report: Report) -> None:
        """Search, and write the map; folders are made.

        cells: those that name the file; of every data set the first one's configuration counts.
        Raises InvalidInput and what `measured` raises.
        """
        self.check(path, cells)
        stages = self.stages(cells, report)
        decided = leaders(stages.compare(DECISION, stages.kind.candidates(stages)))
        cell = stages.cells[0]
        costs = costs_of(cell, report)
        times = costs.model.times((stages.num_nodes,), length_of(cell))
        best = max(decided, key=lambda topology: self._merit(topology, decided, times))
        final = stages.compare(FINAL, list(decided))
        about = {
            "made_from": [self.by, *(first.cell_id for first in stages.kind.first(stages))],
            "pair": cell.labels["pair"],
            "temperature": cell.labels["temperature"],
            "datasets": [one.labels["dataset"] for one in stages.cells],
            "draws": stages.draws,
            "verifier": stages.kind.verifier,
            **summary(best, final, times),
            **seconds_of(times),
            **source_of(cell, costs),
        }
        grow_map.save(best, path, about)

    def stages(self, cells: Sequence[Cell], report: Report) -> Stages:
        """The stages for the cells that name a file, in the order of their data sets' names."""
        chosen = one_of_each_dataset(cells)
        return Stages(chosen, self.num_prompts, range(FEWEST_LEVELS, self.num_levels + 1), report)

    def _merit(self, topology: Topology, found: Found, times: Times) -> float:
        """The larger, the better."""
        return found[topology].tokens if self.by == "tokens" else -s_per_token(topology, found, times)


def s_per_token(topology: Topology, found: Found, times: Times) -> float:
    """Expected seconds a token: one forward of the draft a level below the root, and one of the target."""
    seconds = (topology.num_levels - 1) * times.draft_s + times.target_s[topology.num_nodes]
    return seconds / found[topology].tokens


def summary(best: Topology, final: Found, times: Times) -> dict[str, Any]:
    """What the final measurement says of a topology, and of the best of every number of levels.

    num_levels: the root counted. frontier: by numbers of levels. fastest_up_to_ratio: numbers of levels by
    rising ratio of a draft forward to a target forward; the last one has no end.
    """

    def facts(topology: Topology) -> dict[str, Any]:
        return {
            "widths": list(widths(topology)),
            "expected_tokens": round(final[topology].tokens, 4),
            "standard_error": round(final[topology].error, 4),
            "s_per_token": float(f"{s_per_token(topology, final, times):.3g}"),
        }

    return {
        "num_levels": best.num_levels,
        **facts(best),
        "frontier": {str(topology.num_levels): facts(topology) for topology in final},
        "fastest_up_to_ratio": {
            str(topology.num_levels): None if math.isinf(ratio) else round(ratio, 4)
            for topology, ratio in fastest(final).items()
        },
    }
