"""Acceptance by sibling index: rates and their intervals, from rows of sums over laws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis import labels
from analysis.bootstrap import Interval
from analysis.law_load import SETTING, LawResults
from analysis.law_report import ratio
from resispec.law_rows import DecayRow

CEILING = "ceiling"
MIN_SHARE = 5e-3
"""A sibling that is tested more rarely has no rate: it would rest on a few drafted tuples."""


@dataclass(frozen=True)
class Rates:
    """One line of the figure, in order of the siblings.

    acceptance: of the i-th sibling, given that those before it were rejected; NaN where its share is below MIN_SHARE.
    accepted: that one of the first i siblings is accepted. share: how often the i-th sibling is tested at all.
    """

    acceptance: tuple[Interval, ...]
    accepted: tuple[Interval, ...]
    share: tuple[float, ...]


@dataclass(frozen=True)
class Line:
    """One method at one setting; `rates` is None where its cell is not done."""

    cell: dict[str, Any]
    verifier: str
    rates: Rates | None


def lines(results: LawResults[DecayRow]) -> Iterator[Line]:
    """The lines of every setting; the ceiling is that of its first finished cell, since it does not depend on the verifier."""
    for _, cells in results.cells.groupby(list(SETTING), sort=False):
        every = cells.to_dict("records")
        for cell in every:
            rows = results.rows.get(cell["cell_id"])
            yield Line(
                cell,
                cell["verifier"],
                _rates(rows, "selected", "tested", rows[0].num_tuples) if rows else None,
            )
        for cell in [cell for cell in every if cell["status"] == "done"][:1]:
            yield Line(
                cell, CEILING, _rates(results.rows[cell["cell_id"]], "ceiling_selected", "ceiling_tested", 1)
            )


def method(verifier: str) -> str:
    """A line's printed name."""
    return verifier if verifier == CEILING else labels.name("verifier", verifier)


def _rates(rows: Sequence[DecayRow], selected: str, tested: str, num_tuples: int) -> Rates:
    """num_tuples: what the sums of one context add up."""
    above = np.array([getattr(row, selected) for row in rows], np.float64)
    below = np.array([getattr(row, tested) for row in rows], np.float64)
    total = np.array([row.num_contexts for row in rows], np.float64) * num_tuples
    share = tuple(float(value) for value in below.sum(0) / total.sum())
    none = Interval(np.nan, np.nan, np.nan)
    columns = range(above.shape[1])
    return Rates(
        acceptance=tuple(ratio(above[:, i], below[:, i]) if share[i] >= MIN_SHARE else none for i in columns),
        accepted=tuple(ratio(above[:, : i + 1].sum(1), total) for i in columns),
        share=share,
    )
