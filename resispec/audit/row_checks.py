"""Shared by the audits: checks of probability rows, and what a `Law` emits."""

from __future__ import annotations

import torch
from torch import Tensor

from resispec.distributions import sum_tolerance
from resispec.errors import InvalidInput
from resispec.verifiers.base import Law, is_first

RETURNED = 1e-4
"""Distance that sums of returned masses may have from 1: they may have been computed in float32."""


def emitted(law: Law, siblings: Tensor) -> Tensor:
    """The law (..., V) of the emitted token given siblings (..., B): select + (1 - sum select) residual."""
    rest = 1 - law.select.sum(-1, keepdim=True)
    return (rest * law.residual).scatter_add(-1, siblings, law.select)


def accepted(law: Law, siblings: Tensor) -> Tensor:
    """Probability (...) that the emitted token is one of the siblings (..., B), selected or residual."""
    rest = 1 - law.select.sum(-1)
    drafted = torch.where(is_first(siblings), law.residual.gather(-1, siblings), 0.0)
    return law.select.sum(-1) + rest * drafted.sum(-1)


def check_rows(
    name: str, rows: Tensor, tolerance: float | None = None, is_whole: Tensor | bool = True
) -> None:
    """Raise InvalidInput, naming the first bad row, unless every row (..., V) is a probability law.

    tolerance: how far a sum may be from 1; by default what `sum_tolerance` says. is_whole: where (...) it is
    False a sum may be less than 1.
    """
    tolerance = sum_tolerance(rows) if tolerance is None else tolerance
    bad = ~((rows >= 0) & (rows < torch.inf))
    if bool(bad.any()):
        *place, entry = first_row(bad)
        raise InvalidInput(
            f"{where(tuple(place))}{name} hold {float(rows[(*place, entry)]):.6g} at entry {entry}; "
            "allowed: finite values, not negative"
        )
    total = rows.sum(-1, dtype=torch.float64)
    short = (total < 1 - tolerance) & is_whole
    if bool((short | (total > 1 + tolerance)).any()):
        row = first_row(short | (total > 1 + tolerance))
        at_most = "" if is_whole is True or short[row] else "at most "
        raise InvalidInput(
            f"{where(row)}{name} sum to {float(total[row]):.9g}; allowed: {at_most}1 within {tolerance:g}"
        )


def first_row(bad: Tensor) -> tuple[int, ...]:
    """Index of the first true entry of a bool tensor; () for a scalar."""
    return tuple(bad.nonzero()[0].tolist())


def where(row: tuple[int, ...]) -> str:
    """`row 3: ` or `row (1, 2): `, and nothing for a single law."""
    return f"row {row[0] if len(row) == 1 else row}: " if row else ""
