"""What searches for trees share: what they refuse, the cells that they measure, and means of the rows.

It imports no torch, so that a search is made and checked before anything slow happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.cells import Cell
from resispec.errors import InvalidInput

if TYPE_CHECKING:
    from experiments.costs.record import Costs
    from experiments.tasks.prefixes import PrefixRow
    from experiments.worker import Report
    from resispec.trees.search import Times

NUM_SIBLINGS = 32  # the most children of a node whose acceptance is measured
ROOT = {"_target_": "resispec.trees.root_only"}


def check_request(path: Path, cells: Sequence[Cell], names: Sequence[str]) -> None:
    """Refuse a file that is asked for with different values of these labels, or that no search can write.

    Raises InvalidInput.
    """
    if path.suffix != ".json":
        raise InvalidInput(f"tree file {path} does not exist; a search writes .json files only")
    for name in names:
        values = list(dict.fromkeys(str(cell.labels[name]) for cell in cells))
        if len(values) > 1:
            raise InvalidInput(
                f"{path} is asked for with {name} {', '.join(values)}; allowed: a tree.path for each"
            )


def check_size(num_nodes: int, num_levels: int) -> None:
    """Raise InvalidInput unless a tree of at most NUM_SIBLINGS children a node can have this size."""
    most = sum(NUM_SIBLINGS**level for level in range(min(num_levels, 8)))
    if not 1 <= num_nodes <= most:
        raise InvalidInput(
            f"tree.num_nodes is {num_nodes}; allowed: 1 to {most}, with search.num_levels {num_levels} and "
            f"{NUM_SIBLINGS} children a node"
        )


def check_documents(num_prompts: int, shares: Sequence[int]) -> None:
    """Raise InvalidInput unless every stage of a search gets a document; see `documents_of`."""
    if num_prompts < sum(shares):
        raise InvalidInput(
            f"search.num_prompts is {num_prompts}; "
            f"allowed: from {sum(shares)}, split over {len(shares)} stages"
        )


def documents_of(stage: int, num_prompts: int, shares: Sequence[int]) -> range:
    """Which of the documents a stage reads. shares: of all stages; none reads those of another."""
    share = num_prompts // sum(shares)
    start = sum(shares[:stage]) * share
    return range(start, start + shares[stage] * share)


def one_of_each_dataset(cells: Sequence[Cell]) -> list[Cell]:
    """The first cell of every data set, in the order of the data sets' names."""
    first = {cell.labels["dataset"]: cell for cell in reversed(cells)}
    return [first[name] for name in sorted(first)]


def measuring_cell(cell: Cell, labels: Mapping[str, Any], documents: range, **nodes: Any) -> Cell:
    """The cell that measures something for a tree: pair, data set and temperature of a cell that wants it.

    labels: how else it is called. documents: which ones, from the first that is for choosing trees.
    nodes: what takes the place of the task and the decoder.
    """
    kept = {name: cell.labels[name] for name in ("pair", "dataset", "temperature")}
    return cell.changed(
        kept | labels,
        **nodes,
        tree=ROOT,
        search=None,
        audit=False,
        first_prompt=cell.config["first_tuning_prompt"] + documents.start,
        num_prompts=len(documents),
        warmup_prompts=0,
    )


def acceptance_task(draws: str) -> dict[str, Any]:
    """The node of the task that measures how often each place in draw order is the accepted one."""
    return {
        "_target_": "experiments.tasks.acceptance.Acceptance",
        "num_siblings": NUM_SIBLINGS,
        "draws": draws,
    }


def rows_of(cells: Sequence[Cell], purpose: str, report: Report) -> list[Any]:
    """The rows of cells, which are measured where they are not complete; `report` is told the purpose."""
    from experiments.worker import measured  # imports torch

    def told(_: str, done: int, count: int) -> None:
        report(purpose, done, count)

    return [row for cell in cells for row in measured(cell, told)]


def mean_and_error(rows: Sequence[PrefixRow], name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means over prefixes, and their standard errors over prompts, of a list that rows hold as sums."""
    sums = np.array([getattr(row, name) for row in rows])
    counts = np.array([row.num_prefixes for row in rows])
    mean = sums.sum(0) / counts.sum()
    deviations = sums - counts[:, None] * mean
    return mean, np.sqrt((deviations**2).sum(0) * len(rows) / max(1, len(rows) - 1)) / counts.sum()


def length_of(cell: Cell) -> float:
    """Positions that are cached before a step of a cell, in the mean over its steps."""
    return float(cell.config["prompt_tokens"] + cell.config["sampling"]["max_new_tokens"] / 2)


def seconds_of(times: Times) -> dict[str, Any]:
    """Seconds of forwards, for a map's `about`."""
    return {
        "target_s": {str(size): float(f"{seconds:.3g}") for size, seconds in times.target_s.items()},
        "draft_s": float(f"{times.draft_s:.3g}"),
    }


def source_of(cell: Cell, costs: Costs) -> dict[str, Any]:
    """The hardware, the code and the costs that a search used, for a map's `about`."""
    import torch

    from experiments.provenance import provenance

    facts = provenance(torch.device(cell.config["device"]))
    kept = {name: facts[name] for name in ("device", "git_commit", "git_is_dirty", "started")}
    return kept | {"costs": costs.source}
