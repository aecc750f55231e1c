"""Raw folders of cells that measure laws -> the typed rows of `resispec.law_rows`; `analysis.load` reads those that decode."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import pandas as pd

from analysis import labels
from analysis.load import LABELS, Cell, read_cell
from resispec.errors import InvalidInput
from resispec.law_rows import LawRow
from resispec.record import read_rows

Row = TypeVar("Row", bound=LawRow)
SETTING = ("pair", "temperature", "dataset")
"""Labels of what is measured; cells that share them differ in the verifier only."""


@dataclass(frozen=True)
class LawResults(Generic[Row]):
    """What an artefact is made of.

    cells: one row per expected cell, as printed (pair, temperature, data set, verifier): cell_id, LABELS, status, reason, device,
    commit. rows: by cell_id, one per prompt in order; only of cells that are done.
    """

    cells: pd.DataFrame
    rows: dict[str, list[Row]]


def load_rows(cells: Iterable[Cell], row_type: type[Row]) -> LawResults[Row]:
    """Read the cells.

    Raises:
        InvalidInput: one line naming the cell, when a file breaks the schema or cells of one pair and data set differ in their
            prompts or seeds.
    """
    entries, rows = [], {}
    prompts: dict[tuple[str, str], tuple[str, list[tuple[int, str, int]]]] = {}
    for cell in cells:
        entries.append(read_cell(cell))
        if entries[-1]["status"] == "done":
            rows[cell.cell_id] = found = _read_rows(cell, row_type)
            measured = [(row.prompt_index, row.prompt_id, row.seed) for row in found]
            first, expected = prompts.setdefault(
                (cell.labels["pair"], cell.labels["dataset"]), (cell.cell_id, measured)
            )
            if measured != expected:
                raise InvalidInput(
                    f"cell {cell.cell_id}: its prompts or seeds are not those of {first}, compared with it"
                )
    table = pd.DataFrame(entries, columns=["cell_id", *LABELS, "status", "reason", "device", "commit"])
    keys = ["pair", "temperature", "dataset", "verifier"]
    ranks = pd.DataFrame(
        {key: [labels.rank(key, value) for value in table[key]] for key in keys}, index=table.index
    )
    return LawResults(table.loc[ranks.sort_values(keys, kind="stable").index].reset_index(drop=True), rows)


def _read_rows(cell: Cell, row_type: type[Row]) -> list[Row]:
    types, rows = get_type_hints(row_type), []
    for number, row in enumerate(read_rows(cell.folder), start=1):
        where = f"cell {cell.cell_id}: rows.jsonl line {number}"
        if set(row) != set(types):
            raise InvalidInput(
                f"{where} does not have the columns of {row_type.__name__}: {', '.join(types)}"
            )
        wrong = [name for name, kind in types.items() if not _is(row[name], kind)]
        if wrong:
            raise InvalidInput(f"{where} has a wrong {wrong[0]}: {str(row[wrong[0]])[:60]}")
        rows.append(row_type(**row))
    if not rows or len({row.prompt_index for row in rows}) < len(rows):
        raise InvalidInput(f"cell {cell.cell_id}: rows.jsonl is empty or holds a prompt twice")
    return sorted(rows, key=lambda row: row.prompt_index)


def _is(value: Any, kind: Any) -> bool:
    """Whether a JSON value has a declared type: int, float (no NaN), str or lists of them."""
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_is(item, get_args(kind)[0]) for item in value)
    if kind is float:
        return type(value) in (int, float) and not math.isnan(value)
    return type(value) is kind
