"""The search for the shape of which a verifier emits most tokens a step, by its decoder's draws; see experiments.search.best_shape."""

from __future__ import annotations

import argparse
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from experiments.search.candidates import neighbours, ordered, regular, spread, unique
from experiments.cells import Cell
from experiments.search.maps import mean_and_error, measured_rows, measuring_cell
from experiments.tasks.shapes import save_shapes
from resispec.core import Draws
from resispec.errors import InvalidInput
from resispec.trees import Topology, from_widths
from resispec.trees.search import winners

PER_LEVEL = 6  # regular shapes of every number of levels
FEWEST_LEVELS = 3  # a star of two levels has nothing to verify from the leaves up
FEWEST_NODES = 4
NEAR = 3  # shapes whose neighbours are tried, from the one of most tokens to that for the slowest draft model
ROUNDS = (0.3, 0.15)  # by what share a level's width changes
DECISION, FINAL = len(ROUNDS) + 1, len(ROUNDS) + 2  # the stages after the first measurement and the rounds
CONTEXTS = (4, *(4 for _ in ROUNDS), 8, 8)  # contexts a document, by stage
SHARES = (2, *(2 for _ in ROUNDS), 5, 4)  # of the documents, by stage


class Value(NamedTuple):
    """Expected tokens a step of a shape, and their standard error over prompts."""

    tokens: float
    error: float


Found = dict[Topology, Value]


@dataclass(frozen=True)
class Search:
    """How shapes are searched for one kind of draws.

    verifier: the one that counts, the best that is known for these draws. first: the cells of the first measurement. shapes: from
    them to the candidates between which is decided.
    """

    verifier: str
    first: Callable[[Stages], list[Cell]]
    shapes: Callable[[Stages], list[Topology]]


class Stages:
    """Measures shapes for one map, on all its data sets; every stage has documents of its own."""

    def __init__(self, cells: Sequence[Cell], chosen: argparse.Namespace) -> None:
        self._overrides, self._share = chosen.overrides, chosen.prompts // sum(SHARES)
        if self._share < 1:
            raise InvalidInput(
                f"--prompts is {chosen.prompts}; allowed: at least {sum(SHARES)}, split over {len(SHARES)} stages"
            )
        self.num_nodes, self.draws = _checked(cells)
        self.levels = range(FEWEST_LEVELS, chosen.levels + 1)
        if self.num_nodes < FEWEST_NODES or not self.levels:
            raise InvalidInput(
                f"a shape of {self.num_nodes} nodes in up to {chosen.levels} levels; "
                f"allowed: levels from {FEWEST_LEVELS}, nodes from {FEWEST_NODES}"
            )
        by_dataset = {cell.labels["dataset"]: cell for cell in cells}
        self._cells = [by_dataset[name] for name in sorted(by_dataset)]

    @property
    def search(self) -> Search:
        """How shapes are searched here."""
        return SEARCHES[self.draws]

    def comparing(self, stage: int, shapes: Sequence[Topology]) -> list[Cell]:
        """The cells that compare shapes, one a data set."""
        config = self._cells[0].config
        name = hashlib.sha256(repr([shape.parents for shape in shapes]).encode()).hexdigest()[:16]
        path = Path(config["results"]) / "raw" / config["profile"] / ".shapes" / f"{name}.json"
        save_shapes(shapes, path)
        return self._measuring(stage, {"task": "shapes", "task.path": path, "task.contexts": CONTEXTS[stage]})

    def compare(self, stage: int, shapes: Sequence[Topology]) -> Found:
        """The value of every shape, over all data sets, one context counting as much as another."""
        purpose = f"{len(shapes)} shapes of {self.num_nodes} nodes, stage {stage + 1} of {len(CONTEXTS)}"
        values = _mean(self.comparing(stage, shapes), purpose, "emitted")
        return dict(zip(shapes, values, strict=True))

    def accepting(self) -> list[Cell]:
        """The cells of the first stage that measure how often each place in draw order is the accepted one."""
        return self._measuring(0, {"task": "acceptance", "task.draws": self.draws.value})

    def acceptance(self) -> list[float]:
        """By place in draw order, over all data sets."""
        return [value.tokens for value in _mean(self.accepting(), "acceptance of siblings", "selected")]

    def _measuring(self, stage: int, task: Mapping[str, Any]) -> list[Cell]:
        replaced = {
            **task, "decoder": self._cells[0].labels["decoder"], "verifier": self.search.verifier,
            "first_prompt": sum(SHARES[:stage]) * self._share, "num_prompts": SHARES[stage] * self._share,
        }  # fmt: skip
        return [measuring_cell(cell, self._overrides, replaced) for cell in self._cells]


def _checked(cells: Sequence[Cell]) -> tuple[int, Draws]:
    """The number of nodes and the draws of a map that can be made."""
    config, path = cells[0].config, cells[0].config["tree"]["path"]
    if len({tuple(cell.labels[name] for name in ("pair", "temperature", "decoder")) for cell in cells}) > 1:
        raise InvalidInput(
            f"{path} is asked for with several pairs, temperatures or decoders; allowed: a path for each"
        )
    if config["tree"]["num_nodes"] is None:
        raise InvalidInput(
            "tree.num_nodes must be given, like tree.num_nodes=121: shapes of one size are compared"
        )
    draws = config["decoder"]["drafter"].get("draws")
    if draws not in SEARCHES:
        raise InvalidInput(
            f"shapes are searched for draws {', '.join(SEARCHES)}; decoder={cells[0].labels['decoder']} has {draws}"
        )
    return config["tree"]["num_nodes"], Draws(draws)


def _mean(cells: Sequence[Cell], purpose: str, name: str) -> list[Value]:
    rows = [row for cell in cells for row in measured_rows(cell, purpose)]
    return [Value(float(mean), float(error)) for mean, error in zip(*mean_and_error(rows, name), strict=True)]


def independent_shapes(stages: Stages) -> list[Topology]:
    """The best two shapes of every number of levels, from regular ones and their neighbours."""
    found = stages.compare(0, _regular(stages))
    for stage, share in enumerate(ROUNDS, start=1):
        near = [
            from_widths(changed)
            for shape in spread(list(fastest(found)), NEAR)
            for changed in neighbours(widths(shape), share, stages.levels[-1])
        ]
        found = stages.compare(stage, unique([*leaders(found), *near]))
    return list(leaders(found, 2))


def _regular(stages: Stages) -> list[Topology]:
    return [from_widths(shape) for shape in regular(stages.num_nodes, stages.levels[-1], PER_LEVEL)]


def ordered_shapes(stages: Stages) -> list[Topology]:
    """Trees of Sequoia's search, for every number of levels."""
    return ordered(stages.acceptance(), stages.num_nodes, stages.levels)


SEARCHES = {
    Draws.IID: Search(
        "traversal_optimal", lambda stages: stages.comparing(0, _regular(stages)), independent_shapes
    ),
    Draws.WITHOUT_REPLACEMENT: Search("traversal", Stages.accepting, ordered_shapes),
    Draws.POINT_MASS: Search("naive", Stages.accepting, ordered_shapes),
}


def widths(shape: Topology) -> tuple[int, ...]:
    """The number of nodes of every level below the root."""
    return tuple(len(level) for level in shape.levels[1:])


def leaders(found: Found, per_level: int = 1) -> Found:
    """The shapes of most expected tokens for every number of levels, by rising number."""
    ranked = sorted(found, key=lambda shape: (shape.num_levels, -found[shape].tokens))
    by_depth = itertools.groupby(ranked, key=lambda shape: shape.num_levels)
    return {shape: found[shape] for _, shapes in by_depth for shape in itertools.islice(shapes, per_level)}


def fastest(found: Found) -> dict[Topology, float]:
    """The shapes that are fastest at some ratio of a draft forward to a target forward, and up to which ratio each is."""
    shapes = list(found)
    wins = winners([(shape.num_levels, found[shape].tokens) for shape in shapes])
    return {shapes[win.index]: win.to_ratio for win in wins}
