"""A cell's folder: its rows as they are measured, and a status that says whether they can be relied on.

While a cell runs, `rows.partial.jsonl` gets a line a prompt. A complete cell has `rows.jsonl`, and a status
with the checksums of all its files, so that damage is noticed. Whoever writes holds the folder's lock.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import MISSING, asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from experiments.cells import Cell
from resispec.errors import InvalidInput, first_line
from resispec.files import checksums, damage, locked, read_json, write_atomically, write_json

if TYPE_CHECKING:  # rows live beside their tasks, which need torch
    from experiments.tasks.base import Row

RowT = TypeVar("RowT", bound="Row")
ROWS, PARTIAL, CELL, PROVENANCE, STATUS = (
    "rows.jsonl",
    "rows.partial.jsonl",
    "cell.json",
    "provenance.json",
    "status.json",
)
SEALED = (CELL, PROVENANCE, ROWS)
STATES = ("running", "done", "failed", "interrupted")


@dataclass(frozen=True)
class Status:
    """A cell's state: one of STATES, "missing" if it never ran, "damaged" if its files are not to be used.

    reason: one line for people, empty where there is nothing to say. seconds: of the last run.
    """

    state: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class CellStore:
    """The folder of one cell."""

    folder: Path

    def status(self) -> Status:
        """The cell's state, with every file of a complete cell compared with its checksum."""
        if not (self.folder / STATUS).exists():
            return (
                Status("damaged", f"{STATUS} is missing")
                if (self.folder / ROWS).exists()
                else Status("missing")
            )
        try:
            found = read_json(self.folder / STATUS)
        except InvalidInput as error:
            return Status("damaged", str(error))
        if found.get("state") not in STATES:
            return Status("damaged", f"{STATUS} has no state that is known")
        if found["state"] == "done" and (problem := damage(self.folder, found.get("files"))):
            return Status("damaged", problem)
        return Status(found["state"], str(found.get("reason", "")), float(found.get("seconds") or 0.0))

    def write_status(self, status: Status) -> None:
        """Record a state; of a cell that is done also the checksums of its files."""
        sums = checksums(self.folder, SEALED) if status.state == "done" else {}
        write_json(self.folder / STATUS, asdict(status) | ({"files": sums} if sums else {}))

    def locked(self, on_wait: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """Hold the folder's lock, see `resispec.files.locked`; the folder is made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return locked(self.folder / ".lock", on_wait)

    def begin(self, cell: Cell) -> None:
        """Record what is measured; rows of a complete cell whose files are damaged are measured again.

        The caller holds the lock, so whatever a killed process was writing beside a file is nobody's.
        """
        for leftover in self.folder.glob(".*.[0-9]*"):  # see `resispec.files.replacing`
            leftover.unlink(missing_ok=True)
        if self.status().state == "damaged":
            (self.folder / ROWS).unlink(missing_ok=True)
        elif (self.folder / ROWS).exists():  # stopped between its last row and its status
            (self.folder / ROWS).replace(self.folder / PARTIAL)
        write_json(self.folder / CELL, {"cell_id": cell.cell_id, "config": cell.config})
        self.write_status(Status("running"))

    def rows(self, row_type: type[RowT]) -> list[RowT]:
        """The rows of a complete cell, in order. Raises InvalidInput, naming the line, for no row."""
        found: list[RowT] = []
        for number, line in enumerate((self.folder / ROWS).read_text(encoding="utf-8").splitlines(), start=1):
            row = parse(line, row_type)
            if row is None:
                where = f"cell {self.folder.name}: {ROWS} line {number}"
                raise InvalidInput(f"{where} is no {row_type.__name__}; run the cell again")
            found.append(row)
        return found


class RowLog(Generic[RowT]):
    """Rows appended as JSON lines while a cell runs, one a prompt, in the order of the prompts.

    A cell that was stopped goes on after the rows that are there. Of a file that holds anything else, only
    the beginning that is right is kept: rows 0, 1, 2, ..., each once.
    """

    def __init__(self, folder: Path, row_type: type[RowT]) -> None:
        self._path, self._partial, self._row_type = folder / ROWS, folder / PARTIAL, row_type
        self.rows: list[RowT] = self._read()
        write_atomically(self._partial, "".join(_line(row) for row in self.rows))

    def append(self, row: RowT) -> None:
        """Add the row of the next prompt, and write it."""
        if row.prompt_index != len(self.rows):
            raise RuntimeError(
                f"row {len(self.rows)} is of prompt {row.prompt_index}; rows are in the order of prompts"
            )
        with self._partial.open("a", encoding="utf-8") as file:
            file.write(_line(row))
        self.rows.append(row)

    def finish(self, num_rows: int) -> None:
        """Give the log its final name. Raises RuntimeError unless the file holds `num_rows` prompts."""
        if len(self.rows) != num_rows or self._read() != self.rows:
            raise RuntimeError(f"{self._partial} does not hold the {num_rows} rows that were measured")
        self._partial.replace(self._path)

    def _read(self) -> list[RowT]:
        """The rows of the partial file up to the first line that is not the next prompt's row."""
        rows: list[RowT] = []
        if self._partial.exists():
            for line in self._partial.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
                row = parse(line, self._row_type) if line.endswith("\n") else None
                if row is None or row.prompt_index != len(rows):
                    break
                rows.append(row)
        return rows


def parse(line: str, row_type: type[RowT]) -> RowT | None:
    """The row that a line of JSON holds; None when it is not exactly such a row."""
    try:
        values = json.loads(line)
        names = {field.name for field in fields(row_type)}
        if not isinstance(values, dict) or not names - set(_defaults(row_type)) <= set(values) <= names:
            return None
        return _adapter(row_type).validate_json(line, strict=True)
    except (ValueError, ValidationError):
        return None


@lru_cache(maxsize=32)
def _adapter(row_type: type[RowT]) -> TypeAdapter[RowT]:
    return TypeAdapter(row_type)


def _defaults(row_type: type[Any]) -> dict[str, Any]:
    """The fields of rows that have a default. Such a field at its default is not written."""
    return {field.name: field.default for field in fields(row_type) if field.default is not MISSING}


def _line(row: Any) -> str:
    defaults = _defaults(type(row))
    values = {
        name: value for name, value in asdict(row).items() if name not in defaults or value != defaults[name]
    }
    try:
        return json.dumps(values, allow_nan=False) + "\n"
    except ValueError as error:
        raise FloatingPointError(
            f"a row of prompt {row.prompt_index} is not finite ({first_line(error)})"
        ) from error
