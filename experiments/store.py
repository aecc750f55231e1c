"""Folders of cells, with measured rows and a status that says whether to rely on them; and plans.

While a cell runs, `rows.partial.jsonl` gets a line for each prompt. A complete cell has
`rows.jsonl`, and a status with the checksums of all its files, so that damage is noticed. A process
that writes holds the folder's lock. A plan says which cells a sweep asked for, for analysis to
read.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from analysis import SWEEP
from analysis.labels import Label
from analysis.load import (
    SEALED,
    TREE_SHA256,
    Status,
    foreign,
    read_cell,
    read_status,
    recorded_code,
    sha256_of,
)
from resispec.code_digest import changed_files
from resispec.errors import InvalidInput
from resispec.files import checksums, locked, read_sealed, sealed, write_atomically, write_json

if TYPE_CHECKING:  # rows live beside their tasks, which need torch; cells need Hydra
    from experiments.cell import Cell
    from experiments.grid import Part, Sweep
    from experiments.tasks.base import Row, Workload

_adapter = cache(TypeAdapter)
CELL, PROVENANCE, ROWS = SEALED
STATUS, PARTIAL = "status.json", "rows.partial.jsonl"
NO_TREE = "no-tree"
"""Text in a plan that takes the place of a cell's id while its tree is not found."""
LAWS, LAWS_FILE = "experiments.tasks.laws.Laws", "prompt-{:05}.safetensors"
"""The task that writes a file beside each row, and the file's name by the place of its prompt."""


@dataclass(frozen=True)
class CellStore:
    """The folder of one cell."""

    folder: Path

    def write_status(self, status: Status) -> None:
        """Record a status; for a cell that is done, also the checksums of its files."""
        sums = checksums(self.folder, SEALED) if status.state == "done" else {}
        write_json(self.folder / STATUS, asdict(status) | ({"files": sums} if sums else {}))

    def locked(self, on_wait: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """Hold the folder's lock, see `resispec.files.locked`; a missing folder is made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return locked(self.folder / ".lock", on_wait)

    def begin(self, cell: Cell, code: Mapping[str, str]) -> None:
        """Record which cell is measured; rows of a damaged cell, or of other code, are removed.

        So are the rows so far of another cell, whose folder was renamed or copied. code: the
        digests of the code that measures now, see `code_digests`. The caller holds the lock, so
        temporary files of a killed process are nobody's and are removed.
        """
        for leftover in self.folder.glob(".*.[0-9]*"):  # see `resispec.files.replacing`
            leftover.unlink(missing_ok=True)
        for path in (self.folder / name for name in (*SEALED, STATUS, PARTIAL)):
            if path.is_dir():  # a folder in a file's place
                shutil.rmtree(path)
            elif not path.is_file():  # none, or a FIFO in its place
                path.unlink(missing_ok=True)
        with suppress(InvalidInput):  # an unreadable cell.json is written anew
            if foreign(self.folder, read_cell(self.folder)):
                (self.folder / PARTIAL).unlink(missing_ok=True)
        if (recorded := recorded_code(self.folder)) and changed_files(recorded, code):
            (self.folder / ROWS).unlink(missing_ok=True)
            (self.folder / PARTIAL).unlink(missing_ok=True)
        elif read_status(self.folder).state == "damaged":
            (self.folder / ROWS).unlink(missing_ok=True)
        elif (self.folder / ROWS).exists():  # stopped between its last row and its status
            (self.folder / ROWS).replace(self.folder / PARTIAL)
        write_json(self.folder / CELL, {"cell_id": cell.cell_id, "config": cell.config})
        self.write_status(Status("running"))

    def rows_so_far(self) -> list[dict[str, Any]]:
        """The rows of a cell, complete or not, up to a line that is damaged or being written."""
        rows = []
        for path in [
            self.folder / name for name in (ROWS, PARTIAL) if (self.folder / name).is_file()
        ][:1]:
            with suppress(ValueError, FileNotFoundError):
                for line in path.read_text("utf-8", errors="replace").splitlines(keepends=True):
                    row = json.loads(line)
                    if line.endswith("\n"):
                        rows.append(row)
        return rows

    def rows(self, row_type: type[Row]) -> list[Any]:
        """The rows of a complete cell, in order.

        Raises InvalidInput, naming the line, if one is no row.
        """
        lines = (self.folder / ROWS).read_text(encoding="utf-8").splitlines()
        rows = [parse(line, row_type) for line in lines]
        if None in rows:
            where = f"cell {self.folder.name}: {ROWS} line {rows.index(None) + 1}"
            raise InvalidInput(f"{where} is no {row_type.__name__}; run the cell again")
        return rows


def status_of(cell: Cell) -> Status:
    """The state of a cell for a run.

    With `reuse=true` a stale one is done, as the reason tells. See also `without_lost`.
    """
    status = read_status(cell.folder, cell.config)
    is_kept = status.state == "stale" and cell.config.get("reuse")
    return without_lost(replace(status, state="done") if is_kept else status, cell.config)


def without_lost(status: Status, config: Mapping[str, Any]) -> Status:
    """The status, or that of a missing cell if files that a complete one has written are gone.

    Its rows are right nevertheless, and tables print them.
    """
    lost = lost_files(config) if status.state == "done" else {}
    if not lost:
        return status
    count = f"{len(lost)} of {config['num_prompts']} files that it has written"
    return Status("missing", f"{count} are gone, the first {min(lost.values())}")


def lost_files(config: Mapping[str, Any]) -> dict[int, Path]:
    """Place of a prompt -> the file that a cell writes beside its row, if there is none.

    Only task=laws writes any.
    """
    task = config.get("task") or {}
    if task.get("_target_") != LAWS:
        return {}
    folder = Path(task["folder"])
    files = {index: folder / LAWS_FILE.format(index) for index in range(config["num_prompts"])}
    return {index: file for index, file in files.items() if not file.is_file()}


class RowLog:
    """Rows appended as JSON lines while a cell runs, one a prompt, in the order of the prompts.

    A cell that was stopped goes on after the rows that are there. If the file holds anything
    else, only its correct beginning is kept: rows 0, 1, 2, ..., each once. workload: the present
    one; rows of other prompts, as of a file that has changed since, are not kept. lost: places of
    prompts whose rows are not kept either, as that of a file that is gone.
    """

    def __init__(
        self, folder: Path, row_type: type[Row], workload: Workload, lost: Collection[int] = ()
    ) -> None:
        self._path, self._partial = folder / ROWS, folder / PARTIAL
        self.rows: list[Row] = []
        text = self._partial.read_text("utf-8", errors="replace") if self._partial.exists() else ""
        for line in text.splitlines(keepends=True):
            row = parse(line, row_type) if line.endswith("\n") else None
            if row is None or row.prompt_index != len(self.rows) or not row.is_of(workload):
                break
            if row.prompt_index in lost:
                break
            self.rows.append(row)
        write_atomically(self._partial, "".join(_line(row) for row in self.rows))

    def append(self, row: Row) -> None:
        """Add the row of the next prompt, and write it."""
        with self._partial.open("a", encoding="utf-8") as file:
            file.write(_line(row))
        self.rows.append(row)

    def finish(self) -> None:
        """Give the log its final name."""
        self._partial.replace(self._path)


def parse(line: str, row_type: type[Row]) -> Row | None:
    """The row that a line of JSON holds; None when it is not exactly such a row."""
    try:
        row: Row = _adapter(row_type).validate_json(line, strict=True)
        return row if set(json.loads(line)) <= {field.name for field in fields(row_type)} else None
    except ValueError:  # pydantic's errors are ValueErrors, too
        return None


def _line(row: Any) -> str:
    """A row as a line of JSON. A field at its default is not written. Raises ValueError for NaN."""
    defaults = {field.name: field.default for field in fields(row)}
    values = {name: value for name, value in asdict(row).items() if value != defaults[name]}
    return json.dumps(values, allow_nan=False) + "\n"


def plans_of(sweep: Sweep) -> dict[Path, list[Part]]:
    """The files of a sweep's plans, in `results/PROFILE/plans`, and the parts that each asks for.

    They are ARTEFACT[/PART].json for an artefact's own cells, else sweep/NAME.json.
    """
    config = sweep.cells[0].config
    folder = Path(config["results"]) / config["profile"] / "plans"
    if sweep.is_artefacts:
        return {folder / f"{part.name}.json": [part] for part in sweep.parts}
    return {folder / SWEEP / f"{sweep.name}.json": list(sweep.parts)}


def write_plans(sweep: Sweep, arguments: Sequence[str]) -> None:
    """Write the plans of a sweep: the cells that it asked for, see `plans_of`.

    A cell whose tree was searched for and not found has no id yet; it counts as missing, like a
    cell that never ran. arguments: those of the command line. Raises InvalidInput for a `name`
    whose plan is that of another sweep, see `_check_name`.
    """
    # the place of dashboards changes no cell
    words = [argument for argument in arguments if not argument.startswith("wandb.")]
    for path, parts in plans_of(sweep).items():
        name, part_name, command = SWEEP, sweep.name, words
        if sweep.is_artefacts:
            name, _, part_name = parts[0].name.partition("/")
            rest = [word for word in words if not word.startswith(("experiment=", "part="))]
            command = [f"experiment={parts[0].name}", *rest]
        # checksums are those of when the cells were composed, perhaps long ago
        sources = {name: checksum for part in parts for name, checksum in part.sources.items()}
        content = {
            "artefact": name,
            "part": part_name,
            "profile": parts[0].cells[0].config["profile"],
            "command": f"resispec run {shlex.join(command)}".strip(),
            "sources": dict(sorted(sources.items())),
            "cells": [
                entry_of(cell) | ({} if sweep.is_artefacts or not part.name else {"of": part.name})
                for part in parts
                for cell in part.cells
            ],
        }
        if sweep.cells[0].config["name"] and not sweep.is_artefacts:
            _check_name(path, content)
        write_json(path, sealed(content))
        if sweep.is_artefacts and part_name and not parts[0].is_named:
            # an earlier version planned it as a whole
            path.parent.with_suffix(".json").unlink(missing_ok=True)


def _check_name(path: Path, content: Mapping[str, Any]) -> None:
    """Raise InvalidInput if the plan in `path` asks for cells that the new one does not.

    The same command goes on, whatever has changed beneath it, and so do cells whose tree is
    searched again. Of a damaged plan nothing is lost.
    """
    try:
        before = read_sealed(path)
        is_again = _words(before["command"]) == _words(content["command"])
        kept = {name for entry in content["cells"] for name in (entry["cell_id"], _labels(entry))}
        lost = {
            _labels(entry) if "tree_file" in entry else entry["cell_id"]
            for entry in before["cells"]
        } - kept
    except (InvalidInput, LookupError, TypeError):  # there is none, or it is damaged
        return
    if lost and not is_again:
        raise InvalidInput(
            f"name is {path.stem!r}, that of another sweep, {before['command']}; allowed: another "
            f"name, all cells of that sweep and more, or this name once {path} is deleted"
        )


def _words(command: str) -> list[str]:
    """The words of a command that decide which cells it asks for."""
    from experiments.grid import NEUTRAL  # imports Hydra, which has planned these cells

    return [word for word in shlex.split(command) if not word.startswith(NEUTRAL)]


def _labels(entry: Mapping[str, Any]) -> str:
    """The labels of a cell in a plan as a text; until its tree is found it has no other name."""
    return json.dumps(entry["labels"], sort_keys=True, default=str)


def entry_of(cell: Cell) -> dict[str, Any]:
    """A cell's entry in a plan; task, num_prompts and is_timed serve to estimate its time."""
    entry = {
        "cell_id": cell.cell_id if cell.has_tree else NO_TREE,
        "labels": {
            name: (value.json() if value.parameters else str(value))
            if isinstance(value, Label)
            else value
            for name, value in cell.labels.items()
        },
        "task": cell.task_name,
        "num_prompts": cell.config["num_prompts"],
        "is_timed": cell.is_timed,
    }
    if cell.tree_file:
        entry["tree_file"] = str(cell.tree_file)
        entry[TREE_SHA256] = sha256_of(cell.tree_file)
    return entry
