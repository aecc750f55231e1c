"""A search for a tree file: what it refuses, the cells that it measures, and the facts that every file tells.

It imports no torch, so that a search is made and checked before anything slow happens. Every measurement is a
cell of its own, kept and resumed like any other, on documents that no table reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from experiments.cell import Cell
from experiments.costs.cost_cache import Costs, costs_of
from experiments.search.candidates import Value
from resispec.errors import InvalidInput

if TYPE_CHECKING:
    from experiments.tasks.prefix_laws import PrefixRow
    from experiments.worker import Report
    from resispec.trees.search import Times

NUM_SIBLINGS = 32  # the most children of a node whose acceptance is measured
ROOT = {"_target_": "resispec.trees.root_only"}
STANDARD = {"_target_": "resispec.verifiers.Standard"}


def draft_model(draws: str) -> dict[str, Any]:
    """Configuration of a decoder whose tree is measured by a task, and not its own."""
    drafter = {"_target_": "resispec.drafters.DraftModel", "topology": ROOT, "draws": draws}
    return {"_target_": "resispec.decode.Decoder", "drafter": drafter, "verifier": STANDARD}


@dataclass
class Measurements:
    """Measurements for one file, on all data sets of the cells that name it.

    cells: one for every data set. num_prompts: documents of each data set, split over the stages by their
    shares, so that none reads those of another. measured: ids of the cells that were measured, in order.
    """

    cells: Sequence[Cell]
    num_prompts: int
    shares: Sequence[int]
    report: Report
    measured: list[str] = field(default_factory=list)

    def stage(
        self, stage: int, task: Mapping[str, Any], decoder: Any, labels: Mapping[str, Any]
    ) -> list[Cell]:
        """The cells of a stage, one a data set, with pair and temperature of the cells that want a tree."""
        share = self.num_prompts // sum(self.shares)
        start = sum(self.shares[:stage]) * share
        return [
            cell.changed(
                {name: cell.labels[name] for name in ("pair", "dataset", "temperature")} | dict(labels),
                task=dict(task),
                decoder=decoder,
                tree=ROOT,
                search=None,
                audit=False,
                first_prompt=cell.config["first_tuning_prompt"] + start,
                num_prompts=self.shares[stage] * share,
                warmup_prompts=0,
            )
            for cell in self.cells
        ]

    def values(self, cells: Sequence[Cell], title: str, name: str) -> list[Value]:
        """Means over all prefixes of a list that rows hold; cells are measured where incomplete."""
        from experiments.worker import measured  # imports torch

        def report(_: str, done: int, count: int) -> None:
            self.report(title, done, count)

        rows = [row for cell in cells for row in measured(cell, report)]
        self.measured += [cell.cell_id for cell in cells]
        means, errors = mean_and_error(rows, name)
        return list(map(Value, means.tolist(), errors.tolist()))

    def acceptance(self, draws: str, decoder: Any, labels: dict[str, Any]) -> list[Value]:
        """How often each place in draw order is the accepted one: the first stage."""
        target = "experiments.tasks.acceptance.Acceptance"
        task = {"_target_": target, "num_siblings": NUM_SIBLINGS, "draws": draws}
        cells = self.stage(0, task, decoder, labels | {"task": "acceptance"})
        return self.values(cells, f"acceptance of siblings, {draws}", "selected")

    @cached_property
    def costs(self) -> Costs:
        """Seconds of steps on this device, which are timed first where nobody did."""
        return costs_of(self.cells[0], self.report)

    @property
    def length(self) -> float:
        """Positions that are cached before a step of a cell, in the mean over its steps."""
        config = self.cells[0].config
        return float(config["prompt_tokens"] + config["sampling"]["max_new_tokens"] / 2)

    def source(self) -> dict[str, Any]:
        """The hardware, the code and the costs that were used, for a file's `about`."""
        import torch

        from experiments.provenance import provenance

        facts = provenance(torch.device(self.cells[0].config["device"]))
        kept = {name: facts[name] for name in ("device", "git_commit", "git_is_dirty", "started")}
        return kept | {"costs": self.costs.source}


@dataclass(frozen=True)
class TreeSearch:
    """A search for a file.

    num_prompts: documents of every data set, split over the stages. num_levels: the most levels, the root
    counted. AGREED: labels that all cells which name the file share. SHARES: of the documents, by stage.
    Raises InvalidInput for values out of range.
    """

    num_prompts: int
    num_levels: int
    AGREED: ClassVar[tuple[str, ...]] = ("pair", "temperature")
    SHARES: ClassVar[tuple[int, ...]] = (1,)
    FEWEST_LEVELS: ClassVar[int] = 2

    def __post_init__(self) -> None:
        fewest = {"num_prompts": sum(self.SHARES), "num_levels": self.FEWEST_LEVELS}
        why = {"num_prompts": f"split over {len(self.SHARES)} stages", "num_levels": "the root counted"}
        for name, least in fewest.items():
            if (value := getattr(self, name)) < least:
                raise InvalidInput(f"search.{name} is {value}; allowed: from {least}, {why[name]}")

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """Refuse what cannot be searched for, before anything is measured. Raises InvalidInput."""
        if path.suffix != ".json":
            raise InvalidInput(f"tree file {path} does not exist; a search writes .json files only")
        for name in self.AGREED:
            values = list(dict.fromkeys(str(cell.labels[name]) for cell in cells))
            if len(values) > 1:
                found = ", ".join(values)
                raise InvalidInput(f"{path} is asked for with {name} {found}; allowed: a tree.path for each")

    def check_size(self, num_nodes: int) -> None:
        """Raise InvalidInput unless a tree of at most NUM_SIBLINGS children a node can have this size."""
        most = sum(NUM_SIBLINGS**level for level in range(min(self.num_levels, 8)))
        if not 1 <= num_nodes <= most:
            raise InvalidInput(
                f"tree.num_nodes is {num_nodes}; allowed: 1 to {most}, with search.num_levels "
                f"{self.num_levels} and {NUM_SIBLINGS} children a node"
            )

    def __call__(self, path: Path, cells: Sequence[Cell], report: Report) -> None:
        """Search, and write the file; folders are made.

        cells: those that name the file; of every data set the first one's configuration counts.
        Raises InvalidInput and what `experiments.worker.measured` raises.
        """
        self.check(path, cells)
        self.write(path, self.measurements(cells, report))

    def measurements(self, cells: Sequence[Cell], report: Report) -> Measurements:
        """Measurements for the cells that name a file, in the order of their data sets' names."""
        first = {str(cell.labels["dataset"]): cell for cell in reversed(cells)}
        return Measurements([first[name] for name in sorted(first)], self.num_prompts, self.SHARES, report)

    def write(self, path: Path, measurements: Measurements) -> None:
        """Search and write the file."""
        raise NotImplementedError


def mean_and_error(rows: Sequence[PrefixRow], name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means over prefixes, and their standard errors over prompts, of a list that rows hold as sums."""
    sums = np.array([getattr(row, name) for row in rows])
    counts = np.array([row.num_prefixes for row in rows])
    mean = sums.sum(0) / counts.sum()
    deviations = sums - counts[:, None] * mean
    return mean, np.sqrt((deviations**2).sum(0) * len(rows) / max(1, len(rows) - 1)) / counts.sum()


def seconds_of(times: Times) -> dict[str, Any]:
    """Seconds of forwards, for a map's `about`."""
    return {
        "target_s": {str(size): float(f"{seconds:.3g}") for size, seconds in times.target_s.items()},
        "draft_s": float(f"{times.draft_s:.3g}"),
    }
