"""Cells in analysis' own format, small enough to derive every number by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from resispec.record import PromptRow

# (decode_s, histogram) per prompt. By hand, emitted over steps and over seconds:
AUTOREGRESSIVE = [(1.0, [4]), (1.0, [8])]  # 4 + 8 = 12 tokens in 12 steps: 1.00; in 2 s: 6.0 a second
STANDARD = [(0.5, [1, 2]), (1.0, [2, 0, 2])]  # 5 in 3 steps + 8 in 4: 13/7 = 1.857; in 1.5 s: 8.667
RESISPEC = [(0.25, [0, 0, 2]), (0.5, [1, 0, 3])]  # 6 in 2 steps + 10 in 4: 16/6 = 2.667; in 0.75 s: 21.333
METHODS = {"autoregressive": AUTOREGRESSIVE, "standard": STANDARD, "resispec": RESISPEC}
DATASETS = ("embedded_code", "embedded_reference")


@dataclass(frozen=True)
class FakeCell:
    cell_id: str
    labels: dict[str, Any]
    folder: Path
    config: dict[str, Any] = field(default_factory=lambda: {"tree": {}})


def make_cell(root: Path, method: str, dataset: str = "embedded_code", **changed: Any) -> FakeCell:
    """A cell that was asked for and never run."""
    cell_labels: dict[str, Any] = {"pair": "embedded", "dataset": dataset, "temperature": 1.0}
    cell_labels |= {"decoder": "autoregressive"}
    if method != "autoregressive":
        cell_labels |= {"decoder": "specinfer", "tree": "d5b3", "verifier": method}
    cell_labels |= changed
    cell_id = "-".join(map(str, cell_labels.values()))
    return FakeCell(cell_id, cell_labels, root / cell_id)


def make_row(index: int, decode_s: float, histogram: list[int]) -> dict[str, Any]:
    emitted = sum(size * count for size, count in enumerate(histogram, start=1))
    row = PromptRow(
        prompt_index=index,
        prompt_id=f"p{index}",
        seed=index,
        num_prompt_tokens=64,
        num_returned=emitted,
        num_emitted=emitted,
        num_steps=sum(histogram),
        histogram=histogram,
        stop_reason="max_new_tokens",
        prefill_s=0.1,
        decode_s=decode_s,
        tokens_sha256="0" * 16,
    )
    return asdict(row)


def save(
    cell: FakeCell, rows: list[dict[str, Any]] | None, state: str = "done", reason: str = ""
) -> FakeCell:
    """Write a cell's folder; `rows.jsonl` only when there are rows."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    provenance = {"device": "test CPU", "git_commit": "abc1234567890", "git_is_dirty": True}
    status = {"state": state, "reason": reason, "seconds": 1.0}
    cell_json = {"cell_id": cell.cell_id, "labels": cell.labels}
    for file, content in (("cell", cell_json), ("status", status), ("provenance", provenance)):
        (cell.folder / f"{file}.json").write_text(json.dumps(content), encoding="utf-8")
    if rows is not None:
        (cell.folder / "rows.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    return cell


def rows_of(measured: list[tuple[float, list[int]]]) -> list[dict[str, Any]]:
    return [make_row(index, decode_s, histogram) for index, (decode_s, histogram) in enumerate(measured)]


def make_audit(cell: FakeCell, tokens: int, shift: float, sha: str | None = None) -> FakeCell:
    """The audit cell of a throughput cell: two prompts whose surprisals deviate by `shift` standard deviations a token."""
    audit = FakeCell(
        f"{cell.cell_id}-audit", cell.labels | {"audit": True}, cell.folder.with_name(f"{cell.cell_id}-audit")
    )
    rows = [json.loads(line) for line in (cell.folder / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        for name, variance in (("surprisal", 1.0), ("overdraft", 0.25), ("rank", 1 / 12)):
            row[name], row[f"{name}_variance"] = [shift * variance**0.5] * tokens, [variance] * tokens
        row["overdraft"][0] = row["overdraft_variance"][0] = None  # a leaf: the draft's law is not known
        row["tokens_sha256"] = sha or row["tokens_sha256"]
    return save(audit, rows)
