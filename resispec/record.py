"""What a cell leaves behind: rows of counts and times. Means and rates are derived in analysis, never stored."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resispec.errors import InvalidInput

if TYPE_CHECKING:  # planning and analysis read records and need no torch
    from resispec.audit.z_score import Terms
    from resispec.decode import Generation


@dataclass(frozen=True)
class PromptRow:
    """One measured prompt.

    prompt_index: position in the data set; the seed is the base seed plus it. num_emitted counts the tokens of all `num_steps`
    steps, num_returned those that were asked for. histogram[k]: steps that emitted k + 1 tokens. Times in seconds.
    """

    prompt_index: int
    prompt_id: str
    seed: int
    num_prompt_tokens: int
    num_returned: int
    num_emitted: int
    num_steps: int
    histogram: list[int]
    stop_reason: str
    prefill_s: float
    decode_s: float
    tokens_sha256: str

    @classmethod
    def of(
        cls, index: int, prompt_id: str, seed: int, num_prompt_tokens: int, generation: Generation
    ) -> PromptRow:
        """The row of one generation."""
        counts = generation.num_emitted
        return cls(
            prompt_index=index,
            prompt_id=prompt_id,
            seed=seed,
            num_prompt_tokens=num_prompt_tokens,
            num_returned=len(generation.tokens),
            num_emitted=sum(counts),
            num_steps=len(counts),
            histogram=[counts.count(emitted) for emitted in range(1, max(counts) + 1)],
            stop_reason=generation.stop_reason,
            prefill_s=generation.prefill_s,
            decode_s=generation.decode_s,
            tokens_sha256=hash_tokens(generation.tokens),
        )


@dataclass(frozen=True)
class AuditRow(PromptRow):
    """One audited prompt: the same tokens as its throughput row, and statistics of the returned ones; its times do not count.

    surprisal, overdraft, rank: a term of each statistic for every returned token (see `resispec.audit.z_score`), and its
    variance; None where the draft's law is not known.
    """

    surprisal: list[float]
    surprisal_variance: list[float]
    overdraft: list[float | None]
    overdraft_variance: list[float | None]
    rank: list[float]
    rank_variance: list[float]

    @classmethod
    def extend(cls, row: PromptRow, terms: Terms) -> AuditRow:
        """A prompt's row with its statistics."""
        values: dict[str, Any] = asdict(row)
        for field in fields(terms):
            values[field.name] = [
                None if value != value else value for value in getattr(terms, field.name).tolist()
            ]
        return cls(**values)


def hash_tokens(tokens: Sequence[int]) -> str:
    """The first 16 hex digits of the SHA-256 of token ids as comma-separated decimals."""
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:16]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when the block ends well: a file's presence means it is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    yield partial
    partial.replace(path)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file, see `replacing`."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, indented, with a newline at the end."""
    write_atomically(path, json.dumps(content, indent=2, sort_keys=True, default=str) + "\n")


def write_status(folder: Path, state: str, reason: str, seconds: float) -> None:
    """Record a cell's state in its folder: "running", "done", "failed" or "interrupted", and why."""
    write_json(folder / "status.json", {"state": state, "reason": reason, "seconds": round(seconds, 3)})


def read_status(folder: Path) -> dict[str, Any]:
    """A cell's state, reason and seconds; state "missing" where the cell was never run."""
    path = folder / "status.json"
    if not path.exists():
        return {"state": "missing", "reason": "", "seconds": 0.0}
    return dict(json.loads(path.read_text(encoding="utf-8")))


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a cell that is complete, in the order of its file.

    Raises InvalidInput, naming the cell and the line, when there is no such file or a line is no JSON object.
    """
    path = folder / "rows.jsonl"
    if not path.exists():
        raise InvalidInput(f"cell {folder.name}: is done but has no rows.jsonl in {folder}")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InvalidInput(
                f"cell {folder.name}: rows.jsonl line {number} is not JSON ({error})"
            ) from error
        if not isinstance(rows[-1], dict):
            raise InvalidInput(f"cell {folder.name}: rows.jsonl line {number} is not a JSON object")
    return rows


class RowLog:
    """Rows appended as JSON lines while a cell runs; renamed to its final name when the cell is complete.

    A cell that was stopped goes on after the rows that are already there; a line cut off by a kill is dropped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_suffix(".partial.jsonl")
        self.rows: list[dict[str, Any]] = []
        if self._partial.exists():
            lines = self._partial.read_text(encoding="utf-8").splitlines(keepends=True)
            self.rows = [json.loads(line) for line in lines if line.endswith("\n")]
            write_atomically(self._partial, "".join(json.dumps(row) + "\n" for row in self.rows))

    def append(self, row: PromptRow) -> None:
        """Add a row and flush it."""
        self.rows.append(asdict(row))
        with self._partial.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")

    def finish(self, num_rows: int) -> None:
        """Give the log its final name. Raises RuntimeError unless the file holds `num_rows` rows, each prompt once."""
        lines = self._partial.read_text(encoding="utf-8").splitlines()
        if len(lines) != num_rows or [json.loads(line) for line in lines] != self.rows:
            raise RuntimeError(
                f"{self._partial} holds {len(lines)} rows where {num_rows} were measured; something else wrote to it"
            )
        self._partial.replace(self._path)
