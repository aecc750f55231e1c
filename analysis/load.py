"""Raw cell folders -> two validated data frames: the cells that an artefact asks for, and their measured prompts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from analysis import audits
from resispec.errors import InvalidInput
from resispec.record import PromptRow, read_rows

LABELS = ("pair", "dataset", "temperature", "decoder", "tree", "verifier")
# An autoregressive cell has neither: its two labels are empty.
OPTIONAL_LABELS = ("tree", "verifier")
STATUSES = ("done", "failed", "interrupted", "missing")
PROMPT_COLUMNS = tuple(field.name for field in fields(PromptRow))
_TYPES = {field.name: str(field.type) for field in fields(PromptRow)}
_IDENTITY = ["prompt_index", "prompt_id", "seed"]


class Cell(Protocol):
    """A cell that an artefact asks for, whether or not it was run."""

    @property
    def cell_id(self) -> str:
        """The hash that names the cell."""

    @property
    def labels(self) -> Mapping[str, Any]:
        """LABELS, without the optional ones that its decoder does not use; `audit` where it is an audit cell."""

    @property
    def folder(self) -> Path:
        """Its raw folder, which need not exist."""


@dataclass(frozen=True)
class Results:
    """What an artefact is made of.

    cells: one row per expected cell, in sweep order: cell_id, LABELS, status (of STATUSES), reason, device, commit.
    prompts: cell_id and PROMPT_COLUMNS, one row per measured prompt of the cells that are done, by prompt_index.
    audits: cell_id of the cell that is audited, `audits.QUANTITIES` and verdict, one row per audit cell; where that did not
    finish, NaN and its status.
    """

    cells: pd.DataFrame
    prompts: pd.DataFrame
    audits: pd.DataFrame


def load(cells: Iterable[Cell], same_prompts: Sequence[str] = ("pair", "dataset")) -> Results:
    """Read the cells, each once.

    Args:
        cells: the cells that the artefact asks for.
        same_prompts: cells that share these labels are compared, so they must have measured the same prompts.

    Raises:
        InvalidInput: one line naming the cell, when a file breaks the schema or compared cells differ in their prompts.
    """
    entries: list[dict[str, Any]] = []
    frames: list[pd.DataFrame] = []
    every = list(cells)
    for cell in every:
        if cell.labels.get("audit"):
            continue
        entries.append(read_cell(cell))
        if entries[-1]["status"] == "done":
            frames.append(_read_prompts(cell))
    table = pd.DataFrame(entries, columns=["cell_id", *LABELS, "status", "reason", "device", "commit"])
    repeated = table.cell_id[table.cell_id.duplicated()]
    if len(repeated):
        raise InvalidInput(f"cell {repeated.iloc[0]}: listed more than once; expected each cell once")
    prompts = (
        pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["cell_id", *PROMPT_COLUMNS])
    )
    _check_same_prompts(table, prompts, list(same_prompts))
    return Results(
        table, prompts, _read_audits([cell for cell in every if cell.labels.get("audit")], table, prompts)
    )


def _read_audits(cells: list[Cell], table: pd.DataFrame, prompts: pd.DataFrame) -> pd.DataFrame:
    """`Results.audits`: each audit cell belongs to the throughput cell with the same labels."""
    audited = {tuple(row[name] for name in LABELS): row["cell_id"] for row in table.to_dict("records")}
    rows = []
    for cell in cells:
        entry = read_cell(cell)
        cell_id = audited.get(tuple(entry[name] for name in LABELS))
        found: dict[str, Any] = {"verdict": f"audit {entry['status']}"}
        if entry["status"] == "done":
            found = audits.audit(cell.cell_id, cell.folder, prompts[prompts.cell_id == cell_id])
        rows.append({"cell_id": cell_id, **found})
    return pd.DataFrame(rows, columns=["cell_id", *audits.QUANTITIES, "verdict"])


def read_cell(cell: Cell) -> dict[str, Any]:
    """One row of `Results.cells`."""
    labels = _checked_labels(cell.cell_id, cell.labels)
    row = {"cell_id": cell.cell_id, **labels, "status": "missing", "reason": "", "device": "", "commit": ""}
    if not (cell.folder / "status.json").exists():
        return row
    stored = _read_json(cell, "cell.json")
    if (
        stored.get("cell_id") != cell.cell_id
        or _checked_labels(cell.cell_id, stored.get("labels") or {}) != labels
    ):
        raise InvalidInput(
            f"cell {cell.cell_id}: cell.json describes {stored.get('cell_id')} {stored.get('labels')}"
        )
    status = _read_json(cell, "status.json")
    if status.get("state") == "running":
        status |= {"state": "interrupted", "reason": "running, or killed, when it was read"}
    if status.get("state") not in STATUSES[:3]:
        allowed = ", ".join(STATUSES[:3])
        raise InvalidInput(
            f"cell {cell.cell_id}: status.json has state {status.get('state')!r}; allowed: {allowed}"
        )
    row |= {"status": status["state"], "reason": " ".join(str(status.get("reason") or "").split())}
    if row["status"] == "done":
        row |= _read_provenance(cell)
    return row


def _read_provenance(cell: Cell) -> dict[str, str]:
    """The hardware and the code of a cell; code outside of a git checkout is "unknown"."""
    provenance = _read_json(cell, "provenance.json")
    missing = [name for name in ("device", "git_commit", "git_is_dirty") if name not in provenance]
    if missing:
        raise InvalidInput(f"cell {cell.cell_id}: provenance.json lacks {', '.join(missing)}")
    commit = provenance["git_commit"][:10] or "unknown"
    return {"device": provenance["device"], "commit": commit + " (changed)" * provenance["git_is_dirty"]}


def _checked_labels(cell_id: str, labels: Mapping[str, Any]) -> dict[str, Any]:
    labels = {name: value for name, value in labels.items() if name != "audit"}
    missing = [name for name in LABELS if name not in labels and name not in OPTIONAL_LABELS]
    unknown = sorted(set(labels) - set(LABELS))
    if missing or unknown:
        allowed = ", ".join(LABELS)
        raise InvalidInput(
            f"cell {cell_id}: labels lack {missing} and have unknown {unknown}; allowed: {allowed}"
        )
    values = {name: str(labels.get(name) or "") for name in LABELS}
    return values | {"temperature": float(labels["temperature"])}


def _read_json(cell: Cell, name: str) -> dict[str, Any]:
    try:
        content = json.loads((cell.folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidInput(f"cell {cell.cell_id}: {name} is missing from {cell.folder}") from error
    except json.JSONDecodeError as error:
        raise InvalidInput(f"cell {cell.cell_id}: {name} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"cell {cell.cell_id}: {name} is not a JSON object")
    return content


def _read_prompts(cell: Cell) -> pd.DataFrame:
    """The rows of a cell that is done, by prompt_index."""
    rows = []
    for number, row in enumerate(read_rows(cell.folder), start=1):
        if problem := _problem(row):
            raise InvalidInput(f"cell {cell.cell_id}: rows.jsonl line {number} {problem}")
        rows.append({"cell_id": cell.cell_id, **row})
    frame = pd.DataFrame(rows, columns=["cell_id", *PROMPT_COLUMNS])
    if frame.empty or frame.prompt_index.duplicated().any() or frame.prompt_id.duplicated().any():
        raise InvalidInput(f"cell {cell.cell_id}: rows.jsonl is empty or holds a prompt twice")
    return frame.sort_values("prompt_index", ignore_index=True)


def _problem(row: dict[str, Any]) -> str | None:
    """What is wrong with one row, or None."""
    missing, unknown = (
        [name for name in PROMPT_COLUMNS if name not in row],
        sorted(set(row) - set(PROMPT_COLUMNS)),
    )
    if missing or unknown:
        return f"lacks columns {missing} and has unknown columns {unknown}"
    wrong = [name for name, kind in _TYPES.items() if not _is(row[name], kind)]
    if wrong:
        return f"has a wrong {wrong[0]}: {row[wrong[0]]!r} is not {_TYPES[wrong[0]]}"
    counts = row["histogram"]
    if row["num_steps"] < 1 or sum(counts) != row["num_steps"]:
        return f"has num_steps {row['num_steps']} and a histogram of {sum(counts)} steps"
    if sum(emitted * count for emitted, count in enumerate(counts, start=1)) != row["num_emitted"]:
        return f"has num_emitted {row['num_emitted']}, which its histogram {counts} contradicts"
    return None if row["decode_s"] > 0 else f"has decode_s {row['decode_s']}; expected more than 0"


def _is(value: Any, kind: str) -> bool:
    """Whether a JSON value has the type that PromptRow declares."""
    if kind == "float":
        return type(value) in (int, float) and math.isfinite(value)
    if kind == "list[int]":
        return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return type(value) is {"int": int, "str": str}[kind]


def _check_same_prompts(cells: pd.DataFrame, prompts: pd.DataFrame, labels: list[str]) -> None:
    """Raise InvalidInput unless cells that share `labels` measured the same prompts with the same seeds."""
    measured = {
        cell_id: frame[_IDENTITY].to_numpy().tolist() for cell_id, frame in prompts.groupby("cell_id")
    }
    for _, group in cells[cells.status == "done"].groupby(labels, sort=False):
        first = group.cell_id.iloc[0]
        for cell_id in group.cell_id:
            found, expected = measured[cell_id], measured[first]
            if len(found) != len(expected):
                sizes = f"{len(found)} prompts; {first}, compared with it, has {len(expected)}"
                raise InvalidInput(f"cell {cell_id}: has {sizes}")
            differing = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
            if differing:
                raise InvalidInput(
                    f"cell {cell_id}: measured prompt {differing[0][0]} where {first}, compared with it, has "
                    f"{differing[0][1]} (index, id, seed)"
                )
