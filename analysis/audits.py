"""What audit cells say of the rows of a table: two z-scores of real decoding, the tokens they rest on, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from resispec.audit.verdict import Evidence, judge
from resispec.audit.z_score import Terms
from resispec.errors import InvalidInput
from resispec.record import read_rows

QUANTITIES = ("z_surprisal", "z_overdraft", "audited_tokens")


def audit(cell_id: str, folder: Path, prompts: pd.DataFrame) -> dict[str, Any]:
    """The statistics of one finished audit cell, QUANTITIES and `verdict`.

    Args:
        cell_id: of the audit cell, for messages.
        folder: its raw folder, with rows of `resispec.record.AuditRow`.
        prompts: the throughput cell's rows; empty when it did not finish.

    Raises:
        InvalidInput: when a row lacks a statistic, or the audit decoded other tokens than the throughput cell.
    """
    rows = read_rows(folder)
    decoded = dict(zip(prompts.prompt_index, prompts.tokens_sha256, strict=True))
    for row in rows:
        if decoded.get(row["prompt_index"], row["tokens_sha256"]) != row["tokens_sha256"]:
            raise InvalidInput(
                f"cell {cell_id}: decoded other tokens of prompt {row['prompt_index']} than the timed cell"
            )
    try:
        scores = Terms(*(_joined(rows, name) for name in Terms.__dataclass_fields__)).scores()
    except KeyError as error:
        raise InvalidInput(f"cell {cell_id}: rows.jsonl lacks the statistic {error}") from error
    verdict = judge(Evidence(z_scores=scores), required=("z_scores",)).finding
    values = {f"z_{name}": score.z for name, score in scores.items()}
    return values | {"audited_tokens": scores["surprisal"].n, "verdict": str(verdict)}


def text(row: Mapping[str, Any]) -> str:
    """A table's cell: "exact (z 0.7, 0.3; 1,536 tokens)"; the state of the audit cell where it did not finish."""
    if row["audited_tokens"] != row["audited_tokens"]:
        return str(row["verdict"])
    scores = ", ".join(f"{row[name]:.1f}" for name in QUANTITIES[:2] if row[name] == row[name])
    return f"{row['verdict']} (z {scores}; {row['audited_tokens']:,.0f} tokens)"


def _joined(rows: list[dict[str, Any]], name: str) -> torch.Tensor:
    values = [float("nan") if value is None else value for row in rows for value in row[name]]
    return torch.tensor(values, dtype=torch.float64)
