"""Search for the topology with which the best verifier emits most tokens a step, or tokens the fastest.

    python -m experiments.run tree=best_121 verifier=traversal_optimal temperature=0.6
    python -m experiments.run tree=best_121 decoder=sequoia verifier=traversal           # without replacement
    python -m experiments.run tree=best_121 verifier=traversal_optimal search.by=time    # the fastest here

A run whose tree file is missing calls this search. It computes the expected tokens of candidate topologies
from laws, all candidates on the same drafted trees, over all data sets of the cells that name the file. The
decoder's draws say which verifier counts (VERIFIERS) and which topologies are candidates. Independent draws:
first regular topologies are compared, then, in rounds, the best of every number of levels and the neighbours
of those that are the fastest at some ratio of the two models' times. Draws that have an order: the trees of
Sequoia's search. More prefixes decide between the best two of every number of levels, and the winners are
measured again on documents that no choice has seen, which is what the file says of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from experiments.cell import Cell
from experiments.search.candidates import (
    Found,
    fastest,
    leaders,
    neighbours,
    ordered,
    regular,
    spread,
    unique,
    widths,
)
from experiments.search.tree_search import ROOT, STANDARD, Measurements, TreeSearch, seconds_of
from resispec.errors import InvalidInput
from resispec.trees import Topology, from_widths, grow_map
from resispec.trees.search import Times

FEWEST_NODES = 4
GOALS = ("tokens", "time")
PER_LEVEL = 6  # regular topologies of every number of levels
NEAR = 3  # topologies whose neighbours are tried: of most tokens, for the slowest draft model, and between
ROUNDS = (0.3, 0.15)  # by what share a level's width changes
DECISION, FINAL = len(ROUNDS) + 1, len(ROUNDS) + 2  # the stages after the first measurement and the rounds
NUM_PREFIXES = (4, *(4 for _ in ROUNDS), 8, 8)  # of each document, by stage
_TRAVERSAL = "resispec.verifiers.Traversal"
VERIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "iid": (
        "traversal_optimal",
        {"_target_": _TRAVERSAL, "rule": {"_target_": "resispec.verifiers.Optimal", "bins": 1024}},
    ),
    "without_replacement": ("traversal", {"_target_": _TRAVERSAL, "rule": STANDARD}),
    "point_mass": ("naive", {"_target_": "resispec.verifiers.Naive"}),
}
"""By draws: the best verifier that is known for them, and its configuration.

Greedy draws have none: a part of their tree does not follow their law.
"""


@dataclass(frozen=True)
class BestShapeSearch(TreeSearch):
    """The search for a file of one pair, temperature and kind of draws.

    by: "tokens" for most tokens a step, "time" for the fewest seconds a token.
    """

    num_prompts: int = 45
    num_levels: int = 14
    by: str = "tokens"
    AGREED: ClassVar[tuple[str, ...]] = ("pair", "temperature", "decoder")
    SHARES: ClassVar[tuple[int, ...]] = (2, *(2 for _ in ROUNDS), 5, 4)
    FEWEST_LEVELS: ClassVar[int] = 3  # a star of two levels has nothing to verify from the leaves up

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by not in GOALS:
            raise InvalidInput(f"search.by is {self.by!r}; allowed: {', '.join(GOALS)}")

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """Refuse what cannot be searched for, before anything is measured. Raises InvalidInput."""
        super().check(path, cells)
        num_nodes, draws = cells[0].config["tree"].get("num_nodes"), _draws(cells[0])
        if num_nodes is None:
            given = "tree.num_nodes must be given, like tree.num_nodes=121"
            raise InvalidInput(f"{given}: shapes of one size are compared")
        if num_nodes < FEWEST_NODES:
            raise InvalidInput(f"tree.num_nodes is {num_nodes}; allowed: from {FEWEST_NODES}")
        self.check_size(num_nodes)
        if draws not in VERIFIERS:
            decoder = str(cells[0].labels["decoder"])
            raise InvalidInput(
                f"shapes are searched for draws {', '.join(VERIFIERS)}; decoder={decoder} has {draws}"
            )

    def write(self, path: Path, measurements: Measurements) -> None:
        """Search, and write the map."""
        cell = measurements.cells[0]
        decided = leaders(compare(measurements, DECISION, self.candidates(measurements)))
        first = measurements.measured[: len(measurements.cells)]
        times = measurements.costs.model.times((cell.config["tree"]["num_nodes"],), measurements.length)
        by_time = {topology: -s_per_token(topology, decided, times) for topology in decided}
        best = max(decided, key=lambda one: decided[one].tokens if self.by == "tokens" else by_time[one])
        final = compare(measurements, FINAL, list(decided))
        about = {
            "made_from": [self.by, *first],
            "pair": str(cell.labels["pair"]),
            "temperature": cell.labels["temperature"],
            "datasets": [str(one.labels["dataset"]) for one in measurements.cells],
            "draws": _draws(cell),
            "verifier": VERIFIERS[_draws(cell)][0],
            **summary(best, final, times),
            **seconds_of(times),
            **measurements.source(),
        }
        grow_map.save(best, path, about)

    def candidates(self, measurements: Measurements) -> list[Topology]:
        """The topologies between which is decided."""
        cell = measurements.cells[0]
        num_nodes, draws = int(cell.config["tree"]["num_nodes"]), _draws(cell)
        if draws != "iid":
            vector = measurements.acceptance(draws, *_method(cell))
            levels = range(self.FEWEST_LEVELS, self.num_levels + 1)
            return ordered([place.tokens for place in vector], num_nodes, levels)
        shapes = [from_widths(shape) for shape in regular(num_nodes, self.num_levels, PER_LEVEL)]
        found = compare(measurements, 0, shapes)
        for stage, share in enumerate(ROUNDS, start=1):
            near = [
                from_widths(changed)
                for topology in spread(list(fastest(found)), NEAR)
                for changed in neighbours(widths(topology), share, self.num_levels)
            ]
            found = compare(measurements, stage, unique([*leaders(found), *near]))
        return list(leaders(found, 2))


def _draws(cell: Cell) -> str:
    """How a cell's decoder draws siblings."""
    return str(cell.config["decoder"].get("drafter", {}).get("draws"))


def _method(cell: Cell) -> tuple[dict[str, Any], dict[str, Any]]:
    """A cell's decoder with the verifier that counts for its draws, and its labels."""
    verifier, node = VERIFIERS[_draws(cell)]
    decoder = cell.config["decoder"]
    changed = decoder | {"drafter": decoder["drafter"] | {"topology": ROOT}, "verifier": node}
    return changed, {"decoder": cell.labels["decoder"], "verifier": verifier}


def comparing(measurements: Measurements, stage: int, topologies: Sequence[Topology]) -> list[Cell]:
    """The cells that compare topologies, one a data set."""
    task = {
        "_target_": "experiments.tasks.shapes.Shapes",
        "num_prefixes": NUM_PREFIXES[stage],
        "topologies": [list(topology.parents) for topology in topologies],
    }
    decoder, labels = _method(measurements.cells[0])
    return measurements.stage(stage, task, decoder, labels | {"task": "shapes"})


def compare(measurements: Measurements, stage: int, topologies: Sequence[Topology]) -> Found:
    """The value of every topology, over all data sets; every prefix counts alike."""
    size, last = topologies[0].num_nodes, len(NUM_PREFIXES)
    title = f"{len(topologies)} shapes of {size} nodes, stage {stage + 1} of {last}"
    cells = comparing(measurements, stage, topologies)
    return dict(zip(topologies, measurements.values(cells, title, "emitted"), strict=True))


def s_per_token(topology: Topology, found: Found, times: Times) -> float:
    """Expected seconds a token: one forward of the draft a level below the root, and one of the target."""
    seconds = (topology.num_levels - 1) * times.draft_s + times.target_s[topology.num_nodes]
    return seconds / found[topology].tokens


def summary(best: Topology, final: Found, times: Times) -> dict[str, Any]:
    """The final measurement of a topology, and of the best of every number of levels.

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
