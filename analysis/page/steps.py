"""What the steps of cells that decode did: how many tokens each emitted, and where acceptance ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis import labels
from analysis.load import LABELS, SETTING, Plan, load
from analysis.report import Table, key_texts, split_keys
from analysis.stats import Interval, ratio

FIELD = "histogram"
"""Of the rows of a cell that decodes: [k] is how many steps emitted k + 1 tokens."""
STATE = ("part", "is_audit", "status", "reason", "device", "commit")
"""What a plan's cells have beside their labels."""


@dataclass(frozen=True)
class Quantity:
    """name: in the frame. column: what stands before its number. spec: of a printed number."""

    name: str
    column: str
    spec: str
    caption: str


SHARE = Quantity(
    "step_share",
    "Emitted",
    ".1%",
    "Histogram of the accepted length: the share of the steps that emitted 1, 2, 3, … tokens, the resampled "
    "or bonus token included.",
)
POSITION = Quantity(
    "position_acceptance",
    "Position",
    ".2f",
    "Acceptance by position: of the steps that accepted all drafted tokens before it, the share that "
    "accepted the one at this depth of the tree, too.",
)


@dataclass(frozen=True)
class Steps:
    """Two tables with a line for every cell: how many tokens steps emitted, and acceptance by position."""

    shares: Table
    positions: Table


def of(name: str, plan: Plan) -> Steps | None:
    """The steps of an artefact's timed cells that draft; None where no finished cell of it decodes.

    name: the artefact's. A cell that is not done has a line that says so, where its part decodes.
    """
    cells, rows = _decoding(plan)
    if not rows:
        return None
    found = {cell_id: _measure(frame) for cell_id, frame in rows.items()}
    tables = [
        _table(
            f"{name}_{quantity.name}",
            cells,
            {cell_id: one[quantity.name] for cell_id, one in found.items()},
            quantity,
        )
        for quantity in (SHARE, POSITION)
    ]
    return Steps(*tables)


def _decoding(plan: Plan) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """The timed cells of all parts that decode, in the order of print, and the rows of finished ones."""
    found, rows = [], {}
    for part in dict.fromkeys(one.part for one in plan.requests):
        timed = [one for one in plan.requests if one.part == part and not one.is_audit and one.labels["tree"]]
        own = load(replace(plan, requests=tuple(timed)), ())
        decoded = {cell_id: frame for cell_id, frame in own.rows.items() if FIELD in frame}
        if decoded:
            found.append(own.cells)
            rows |= decoded
    if not rows:
        return pd.DataFrame(), rows
    cells = pd.concat(found).fillna("")
    cells = cells.drop_duplicates([name for name in cells if name not in STATE])
    places = {name: [labels.rank(name, value) for value in cells[name]] for name in SETTING}
    order = pd.DataFrame(places, index=range(len(cells))).sort_values(list(SETTING), kind="stable").index
    return cells.iloc[order].reset_index(drop=True), rows


def _measure(rows: pd.DataFrame) -> dict[str, list[Interval]]:
    """Both quantities of one cell, the first entry for one token and for the first position."""
    longest = max(map(len, rows[FIELD]))
    counts = np.array([[*steps, *[0] * (longest - len(steps))] for steps in rows[FIELD]], np.float64)
    reached = counts[:, ::-1].cumsum(axis=1)[:, ::-1]  # steps that emitted so many tokens or more
    return {
        SHARE.name: [ratio(counts[:, place], reached[:, 0]) for place in range(longest)],
        POSITION.name: [ratio(reached[:, place + 1], reached[:, place]) for place in range(longest - 1)],
    }


def _table(
    stem: str, cells: pd.DataFrame, found: Mapping[str, Sequence[Interval]], quantity: Quantity
) -> Table:
    """A line for every cell, a column for every number of tokens or position."""
    keys = [name for name in cells if name not in ("cell_id", *STATE)]
    more = [name for name in keys if name not in LABELS]
    varying, fixed = split_keys(cells.assign(method=""), (*SETTING, *more, "tree", "method"))
    width = max(map(len, found.values()), default=0)
    records, lines = [], []
    for cell in cells.to_dict("records"):
        measured = found.get(cell["cell_id"], ())
        shared = {name: cell[name] for name in ("cell_id", *keys, "status", "reason")}
        shared["quantity"] = quantity.name
        records += [shared | {"number": place} | vars(one) for place, one in enumerate(measured, start=1)]
        texts = [_text(one, quantity) for one in measured]
        texts += [labels.ABSENT] * (width - len(texts))
        if cell["status"] != "done":
            texts[:1] = [labels.gap(cell)]
        lines.append([*key_texts(cell, varying), *texts])
    header = [*map(labels.header, varying), *(f"{quantity.column} {place}" for place in range(1, width + 1))]
    shown = pd.DataFrame(lines, columns=header)
    return Table(stem, pd.DataFrame(records), shown, len(varying), quantity.caption + fixed)


def _text(found: Interval, quantity: Quantity) -> str:
    """Shares of steps add up to 1 and are printed without their intervals."""
    if quantity is SHARE:
        return labels.number(found.value, quantity.spec)
    return labels.interval(found, quantity.spec)
