"""What audit cells say of a table's rows: z-scores of decoding, the tokens they rest on, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd
import torch

from analysis.load import Results
from resispec.audit.verdict import Evidence, judge
from resispec.audit.z_score import Terms
from resispec.errors import InvalidInput

QUANTITIES = ("z_surprisal", "z_overdraft", "audited_tokens")
DEFINITION = (
    "Audit: is the output's law the target's? Two z-scores over the tokens of a separate run with the same "
    "prompts and seeds (surprisal and overdraft, see docs/exactness.md); beyond 4 is biased, too few tokens "
    "are undecided."
)


def by_labels(results: Results) -> dict[tuple[Any, ...], dict[str, Any]]:
    """QUANTITIES and "verdict" of every audit cell, by its labels, which the cell that it audits has, too.

    An audit that did not finish has NaN, and its status as its verdict.
    Raises InvalidInput when an audit decoded other tokens than the cell that it audits.
    """
    cells = results.cells
    keys = list(results.keys)
    timed = {tuple(cell[key] for key in keys): cell for cell in cells[~cells.is_audit].to_dict("records")}
    found = {}
    for cell in cells[cells.is_audit].to_dict("records"):
        labels = tuple(cell[key] for key in keys)
        found[labels] = dict.fromkeys(QUANTITIES, np.nan) | {"verdict": f"audit {cell['status']}"}
        if cell["status"] == "done":
            own = results.rows[cell["cell_id"]]
            _check_same_tokens(cell["cell_id"], own, results.rows.get(timed.get(labels, {}).get("cell_id")))
            found[labels] = judged(cell["cell_id"], own)
    return found


def judged(cell_id: str, rows: pd.DataFrame) -> dict[str, Any]:
    """QUANTITIES and "verdict" of a finished audit. Raises InvalidInput when a statistic is missing."""
    missing = [field.name for field in fields(Terms) if field.name not in rows]
    if missing:
        raise InvalidInput(f"cell {cell_id}: its rows lack the statistics {', '.join(missing)}")
    scores = Terms(*(_joined(rows[field.name]) for field in fields(Terms))).scores()
    verdict = judge(Evidence(z_scores=scores), required=("z_scores",)).finding
    tokens = scores["surprisal"].n if "surprisal" in scores else 0
    values = {
        f"z_{name}": scores[name].z if name in scores else np.nan for name in ("surprisal", "overdraft")
    }
    return values | {"audited_tokens": tokens, "verdict": str(verdict)}


def text(row: Mapping[str, Any]) -> str:
    """A table's entry: "exact (z 0.7, 0.3; 1,536 tokens)"; the audit's state where it did not finish."""
    if row["audited_tokens"] != row["audited_tokens"]:
        return str(row["verdict"])
    scores = ", ".join(f"{row[name]:.1f}" for name in QUANTITIES[:2] if row[name] == row[name])
    return f"{row['verdict']} (z {scores}; {row['audited_tokens']:,.0f} tokens)"


def _check_same_tokens(cell_id: str, own: pd.DataFrame, timed: pd.DataFrame | None) -> None:
    decoded = {} if timed is None else dict(zip(timed.prompt_index, timed.tokens_sha256, strict=True))
    for index, tokens in zip(own.prompt_index, own.tokens_sha256, strict=True):
        if decoded.get(index, tokens) != tokens:
            raise InvalidInput(f"cell {cell_id}: decoded other tokens of prompt {index} than the timed cell")


def _joined(values: pd.Series) -> torch.Tensor:
    every = [float("nan") if value is None else value for prompt in values for value in prompt]
    return torch.tensor(every, dtype=torch.float64)
