"""The stages of a search for the best topology: each compares topologies on documents of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.cells import Cell
from experiments.search.candidates import (
    Found,
    Value,
    fastest,
    leaders,
    neighbours,
    ordered,
    regular,
    spread,
    unique,
    widths,
)
from experiments.search.measuring import (
    ROOT,
    acceptance_task,
    documents_of,
    mean_and_error,
    measuring_cell,
    rows_of,
)
from resispec.trees import Topology, from_widths

if TYPE_CHECKING:
    from experiments.worker import Report

PER_LEVEL = 6  # regular topologies of every number of levels
FEWEST_LEVELS = 3  # a star of two levels has nothing to verify from the leaves up
NEAR = 3  # topologies whose neighbours are tried: of most tokens, for the slowest draft model, and between
ROUNDS = (0.3, 0.15)  # by what share a level's width changes
DECISION, FINAL = len(ROUNDS) + 1, len(ROUNDS) + 2  # the stages after the first measurement and the rounds
NUM_PREFIXES = (4, *(4 for _ in ROUNDS), 8, 8)  # of each document, by stage
SHARES = (2, *(2 for _ in ROUNDS), 5, 4)  # of the documents, by stage


@dataclass(frozen=True)
class Stages:
    """Measures topologies for one file, on all its data sets.

    cells: one for every data set. num_prompts: documents of each data set, split over the stages.
    levels: the numbers of levels that are tried, the root counted.
    """

    cells: Sequence[Cell]
    num_prompts: int
    levels: range
    report: Report

    @property
    def num_nodes(self) -> int:
        """Nodes of every topology, the root counted."""
        return int(self.cells[0].config["tree"]["num_nodes"])

    @property
    def draws(self) -> str:
        """How the decoder draws siblings."""
        return str(self.cells[0].config["decoder"]["drafter"]["draws"])

    @property
    def kind(self) -> Kind:
        """How topologies are searched for with these draws."""
        return KINDS[self.draws]

    def comparing(self, stage: int, topologies: Sequence[Topology]) -> list[Cell]:
        """The cells that compare topologies, one a data set."""
        task = {
            "_target_": "experiments.tasks.shapes.Shapes",
            "num_prefixes": NUM_PREFIXES[stage],
            "topologies": [list(topology.parents) for topology in topologies],
        }
        return self._measuring(stage, "shapes", task)

    def compare(self, stage: int, topologies: Sequence[Topology]) -> Found:
        """The value of every topology, over all data sets; every prefix counts alike."""
        title = f"{len(topologies)} shapes of {self.num_nodes} nodes, stage {stage + 1} of {len(SHARES)}"
        values = self._mean(self.comparing(stage, topologies), title, "emitted")
        return dict(zip(topologies, values, strict=True))

    def accepting(self) -> list[Cell]:
        """The cells that measure how often each place in draw order is the accepted one: the first stage."""
        return self._measuring(0, "acceptance", acceptance_task(self.draws))

    def acceptance(self) -> list[float]:
        """By place in draw order, over all data sets."""
        return [value.tokens for value in self._mean(self.accepting(), "acceptance of siblings", "selected")]

    def _measuring(self, stage: int, name: str, task: dict[str, Any]) -> list[Cell]:
        documents = documents_of(stage, self.num_prompts, SHARES)
        found = []
        for cell in self.cells:
            decoder = cell.config["decoder"]
            drafter = decoder["drafter"] | {"topology": ROOT}
            nodes = {"task": task, "decoder": decoder | {"drafter": drafter, "verifier": self.kind.node}}
            labels = {"decoder": cell.labels["decoder"], "verifier": self.kind.verifier, "task": name}
            found.append(measuring_cell(cell, labels, documents, **nodes))
        return found

    def _mean(self, cells: Sequence[Cell], title: str, name: str) -> list[Value]:
        found = mean_and_error(rows_of(cells, title, self.report), name)
        return [Value(float(mean), float(error)) for mean, error in zip(*found, strict=True)]


@dataclass(frozen=True)
class Kind:
    """How topologies are searched for with one kind of draws.

    verifier, node: the one that counts, the best that is known for these draws, and its configuration.
    first: the cells of the first measurement. candidates: the topologies between which is decided.
    """

    verifier: str
    node: dict[str, Any]
    first: Callable[[Stages], list[Cell]]
    candidates: Callable[[Stages], list[Topology]]


def independent(stages: Stages) -> list[Topology]:
    """The best two topologies of every number of levels, from regular ones and their neighbours."""
    found = stages.compare(0, _regular(stages))
    for stage, share in enumerate(ROUNDS, start=1):
        near = [
            from_widths(changed)
            for topology in spread(list(fastest(found)), NEAR)
            for changed in neighbours(widths(topology), share, stages.levels[-1])
        ]
        found = stages.compare(stage, unique([*leaders(found), *near]))
    return list(leaders(found, 2))


def _regular(stages: Stages) -> list[Topology]:
    return [from_widths(shape) for shape in regular(stages.num_nodes, stages.levels[-1], PER_LEVEL)]


def with_order(stages: Stages) -> list[Topology]:
    """Trees of Sequoia's search, for every number of levels."""
    return ordered(stages.acceptance(), stages.num_nodes, stages.levels)


_TRAVERSAL = "resispec.verifiers.Traversal"
KINDS = {
    "iid": Kind(
        "traversal_optimal",
        {"_target_": _TRAVERSAL, "rule": {"_target_": "resispec.verifiers.Optimal", "bins": 1024}},
        lambda stages: stages.comparing(0, _regular(stages)),
        independent,
    ),
    "without_replacement": Kind(
        "traversal",
        {"_target_": _TRAVERSAL, "rule": {"_target_": "resispec.verifiers.Standard"}},
        Stages.accepting,
        with_order,
    ),
    "point_mass": Kind("naive", {"_target_": "resispec.verifiers.Naive"}, Stages.accepting, with_order),
}
"""By the name of the draws. Greedy draws have none: a part of their tree does not follow their law."""
