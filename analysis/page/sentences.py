"""Verdicts of a table's rows in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from analysis.table import ABSENT, Audit, Key, Number, Table, number
from resispec.audit.verdict import LIMIT, Finding

VARIATION = ("total_variation", "total_variation_z")
"""Columns that say how far one node's law is from the target's, and in how many standard errors."""


@dataclass(frozen=True)
class Sentence:
    """A sentence about a table's row. row: its name. verdict: a `Finding`, or the audit's state."""

    row: str
    verdict: str
    text: str


def of(table: Table) -> Iterator[Sentence]:
    """Sentences about the exactness of a table's rows, in their order; it may say nothing of it."""
    for row in table.rows:
        keys = [cell for cell in row if isinstance(cell, Key) and str(cell) != ABSENT]
        title = ", ".join(f"T = {key}" if isinstance(key.value, float) else str(key) for key in keys)
        cells = {column.key: cell for column, cell in zip(table.columns, row, strict=True)}
        for column, cell in zip(table.columns, row, strict=True):
            if isinstance(cell, Audit) and cell.verdict:
                name = f"{title}: {column.header}" if column.of else title
                yield Sentence(name, cell.verdict, _of_audit(cell))
        variation, z = map(cells.get, VARIATION)
        if isinstance(variation, Number) and isinstance(z, Number) and not math.isnan(z.value):
            amount = f"total variation {variation}, {number(z.value, '.1f')} standard errors"
            if z.value > LIMIT:
                text = f"Not the target's law: {amount} above what an exact rule has."
                yield Sentence(title, Finding.BIASED, text)
            else:
                text = f"No deviation at a node: {amount}, within {LIMIT:g}."
                yield Sentence(title, Finding.NO_BIAS_SEEN, text)


def _of_audit(audit: Audit) -> str:
    if math.isnan(audit.tokens):
        return f"No verdict: {audit.verdict}."
    tokens, (surprisal, overdraft) = f"{audit.tokens:,.0f} tokens", audit.z
    scores = f"surprisal {number(surprisal, '.1f')}, overdraft {number(overdraft, '.1f')} standard errors"
    if audit.verdict == Finding.NO_BIAS_SEEN:
        return f"No deviation from the target's law in {tokens}: {scores}, all within {LIMIT:g}."
    if audit.verdict != Finding.BIASED:
        return f"No bias found, but too little evidence in {tokens} to judge: {scores}."
    reasons = ["tokens that the draft overrates come out too often"] * (overdraft > LIMIT)
    if abs(surprisal) > LIMIT:
        rarer = "less" if surprisal > 0 else "more"
        reasons.append(f"its tokens are {rarer} likely under the target than the target's own")
    because = " and ".join(reasons) or "a statistic lies too far out"
    return f"Not the target's law: {because} ({scores} over {tokens}; beyond {LIMIT:g} is bias)."
