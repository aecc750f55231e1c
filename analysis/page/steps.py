"""Steps of cells that decode: how many tokens each emitted, and where acceptance ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis import labels
from analysis.load import LABELS, SETTING, Plan, load
from analysis.long import key_texts, split_keys
from analysis.stats import Interval, ratio
from analysis.table import NAN, Cell, Column, Gap, Key, Number, Table

FIELD = "histogram"
"""Field of the rows of a cell that decodes: [k] is how many steps emitted k + 1 tokens."""
STATE = ("part", "is_audit", "status", "reason", "device", "commit")
"""Columns of a plan's cells beside their labels."""
SHARE, POSITION = "step_share", "position_acceptance"
CAPTIONS = {
    SHARE: "Histogram of the accepted length: the share of the steps that emitted 1, 2, 3, … tokens, the "
    "resampled or bonus token included.",
    POSITION: "Acceptance by position: of the steps that accepted all drafted tokens before it, the share "
    "that accepted the one at this depth of the tree, too.",
}


def of(plan: Plan) -> tuple[Table, ...]:
    """Both tables, with a line for every timed cell that drafts; none where no finished cell decodes.

    A cell that is not done has a line that says so, where its part decodes.
    """
    cells, rows = _decoding(plan)
    measured = {cell_id: _measure(frame) for cell_id, frame in rows.items()}
    return tuple(
        _table(
            plan.artefact, quantity, cells, {cell_id: found[quantity] for cell_id, found in measured.items()}
        )
        for quantity in (CAPTIONS if measured else ())
    )


def _decoding(plan: Plan) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """The timed cells of all parts that decode, in the order of print, and the rows of finished ones."""
    frames, rows = [], {}
    for part in dict.fromkeys(request.part for request in plan.requests):
        timed = [
            request
            for request in plan.requests
            if request.part == part and not request.is_audit and request.labels["tree"]
        ]
        results = load(replace(plan, requests=tuple(timed)), ())
        decoded = {cell_id: frame for cell_id, frame in results.rows.items() if FIELD in frame}
        if decoded:
            frames.append(results.cells)
            rows |= decoded
    if not rows:
        return pd.DataFrame(), rows
    cells = pd.concat(frames).fillna("")
    cells = cells.drop_duplicates([name for name in cells if name not in STATE])
    ranks = {name: [labels.rank(name, value) for value in cells[name]] for name in SETTING}
    order = pd.DataFrame(ranks, index=range(len(cells))).sort_values(list(SETTING), kind="stable").index
    return cells.iloc[order], rows


def _measure(rows: pd.DataFrame) -> dict[str, list[Interval]]:
    """Both quantities of one cell, the first entry for one token and for the first position."""
    longest = max(map(len, rows[FIELD]))
    counts = np.array([[*steps, *[0] * (longest - len(steps))] for steps in rows[FIELD]], np.float64)
    reached = counts[:, ::-1].cumsum(axis=1)[:, ::-1]  # steps that emitted so many tokens or more
    return {
        SHARE: [ratio(counts[:, place], reached[:, 0]) for place in range(longest)],
        POSITION: [ratio(reached[:, place + 1], reached[:, place]) for place in range(longest - 1)],
    }


def _table(
    artefact: str, quantity: str, cells: pd.DataFrame, measured: Mapping[str, Sequence[Interval]]
) -> Table:
    """A line for every cell, a column for every number of tokens or position.

    Shares of steps add up to 1 and are printed without their intervals.
    """
    keys = [name for name in cells if name not in ("cell_id", *STATE)]
    more = [name for name in keys if name not in LABELS]
    varying, fixed = split_keys(cells.assign(method=""), (*SETTING, *more, "tree", "method"))
    width = max(map(len, measured.values()))
    records, rows = [], []
    for cell in cells.to_dict("records"):
        intervals = measured.get(cell["cell_id"], ())
        shared = {name: cell[name] for name in ("cell_id", *keys, "status", "reason")} | {
            "quantity": quantity
        }
        records += [shared | {"number": place} | vars(one) for place, one in enumerate(intervals, start=1)]
        numbers: list[Cell] = [
            Number(one.value, spec=".1%") if quantity == SHARE else Number.of(one, ".2f") for one in intervals
        ]
        numbers += [Number(NAN)] * (width - len(numbers))
        if cell["status"] != "done":
            numbers[:1] = [Gap(cell["status"], cell["reason"])]
        texts = zip(varying, key_texts(cell, varying), strict=True)
        rows.append((*(Key(cell.get(key, text), text) for key, text in texts), *numbers))
    header = "Emitted" if quantity == SHARE else "Position"
    columns = [Column(key, labels.header(key), "key") for key in varying]
    columns += [Column(quantity, f"{header} {place}", "number") for place in range(1, width + 1)]
    stem = f"{artefact}_{quantity}"
    return Table(stem, tuple(columns), tuple(rows), CAPTIONS[quantity] + fixed, pd.DataFrame(records))
