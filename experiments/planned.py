"""What plans ask for as it stands on the disk, and how long what is left will take; no torch and no Hydra."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from experiments.store import PARTIAL, STATUS, CellStore, Status

NO_TREE = "no-tree"
"""In a plan, in place of a cell's id while its tree is not found."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell that a plan asks for.

    key: names it among all cells. alike: task, audit or not, decoder, tree: what its time depends on, the
    most important first. status: one that says "running" is, what a kill left is "interrupted". num_left:
    prompts that it has still to measure. is_timed: no other such cell may run beside it. written: when the
    status was, in nanoseconds; 0 without one.
    """

    key: str
    alike: tuple[str, ...]
    num_prompts: int
    status: Status
    num_left: int
    is_timed: bool
    written: int = 0


def planned_cell(entry: Mapping[str, Any], raw: Path) -> PlannedCell:
    """A cell from its entry in a plan. raw: the folder of the cells' folders.

    Raises LookupError, TypeError or ValueError for what is no entry.
    """
    labels, cell_id = entry["labels"], str(entry["cell_id"])
    names = [entry.get("task"), labels.get("audit"), labels["decoder"], labels.get("tree")]
    alike, num_prompts = tuple(map(str, names)), int(entry.get("num_prompts", 1))
    is_timed = bool(entry.get("is_timed", False))
    if cell_id == NO_TREE:
        key = json.dumps([labels, num_prompts, entry.get("tree_file")], sort_keys=True)
        status = Status("missing", "its tree is not found yet")
        return PlannedCell(key, alike, num_prompts, status, num_prompts, is_timed)
    folder = raw / cell_id
    status = _status(CellStore(folder))
    if status.state == "done":
        num_left = 0
    else:
        partial = folder / PARTIAL
        num_left = num_prompts - (partial.read_bytes().count(b"\n") if partial.is_file() else 0)
    file = folder / STATUS
    written = file.stat().st_mtime_ns if file.is_file() else 0
    return PlannedCell(cell_id, alike, num_prompts, status, max(0, num_left), is_timed, written)


def _status(store: CellStore) -> Status:
    """A cell's status; one that says "running" is believed while somebody holds the folder's lock."""
    status = store.status()
    if status.state != "running":
        return status
    try:
        with store.locked():
            return Status("interrupted", "killed")
    except OSError:  # held by whoever measures it (TimeoutError), or not ours to try
        return status


class Estimate:
    """Seconds a prompt, by the cells that are measured: the median of those most alike."""

    def __init__(self, cells: Iterable[PlannedCell]) -> None:
        self._rates: dict[tuple[str, ...], list[float]] = {}
        for cell in cells:
            if cell.status.state == "done" and cell.status.seconds > 0:
                for length in range(len(cell.alike) + 1):
                    rates = self._rates.setdefault(cell.alike[:length], [])
                    rates.append(cell.status.seconds / cell.num_prompts)

    def seconds(self, cells: Iterable[PlannedCell], num_workers: int) -> float | None:
        """How long workers take to finish cells, of which one at a time may be timed.

        None when nothing was measured.
        """
        left = [cell for cell in cells if cell.num_left]
        if left and not self._rates:
            return None
        found = [(cell.num_left * self._seconds_a_prompt(cell.alike), cell.is_timed) for cell in left]
        return elapsed(found, num_workers)

    def _seconds_a_prompt(self, alike: tuple[str, ...]) -> float:
        while alike not in self._rates:
            alike = alike[:-1]
        return median(self._rates[alike])


def elapsed(cells: Iterable[tuple[float, bool]], num_workers: int) -> float:
    """How long workers take for cells, each given by its seconds and whether it is timed.

    One timed cell at a time may run.
    """
    found = list(cells)
    return max(sum(one for one, is_timed in found if is_timed), sum(one for one, _ in found) / num_workers)
