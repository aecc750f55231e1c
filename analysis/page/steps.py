"""Steps of cells that decode: how many tokens each emitted, and where acceptance ends."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from analysis import labels, long
from analysis.load import SETTING, Plan, Results, load
from analysis.stats import ABSENT, Interval, ratio
from analysis.table import Table

FIELD = "histogram"
"""Field of the rows of a cell that decodes: [k] is how many steps emitted k + 1 tokens."""
SHARE, POSITION = "step_share", "position_acceptance"
CAPTIONS = {
    SHARE: "Histogram of the accepted length: the share of the steps that emitted 1, 2, 3, … tokens, the "
    "resampled or bonus token included.",
    POSITION: "Acceptance by position: of the steps that accepted all drafted tokens before it, the share "
    "that accepted the one at this depth of the tree, too.",
}


def of(plan: Plan) -> tuple[Table, ...]:
    """Both tables, with a line for every timed cell that drafts; none where no finished cell decodes.

    A cell that is not done has a line that says so, where its part decodes. Shares of steps add up to 1 and
    are printed without their intervals.
    """
    drafting = [
        part.only(lambda one: one.labels["tree"] and not one.is_audit) for part in plan.by_part().values()
    ]
    parts = [one for one in map(load, drafting) if any(FIELD in prompts for prompts in one.rows.values())]
    if not parts:
        return ()
    keys = tuple(dict.fromkeys(key for part in parts for key in part.keys))
    cells = pd.concat([part.cells for part in parts]).fillna("").drop_duplicates(["cell_id", *keys])
    cells = cells.iloc[
        np.lexsort([cells[name].map(partial(labels.rank, name)) for name in reversed(SETTING)])
    ]
    results = Results(cells, {name: rows for part in parts for name, rows in part.rows.items()}, keys)
    measured = {cell_id: _measure(prompts) for cell_id, prompts in results.rows.items()}
    return tuple(_table(f"{plan.artefact}_{quantity}", quantity, results, measured) for quantity in CAPTIONS)


def _measure(prompts: pd.DataFrame) -> dict[str, list[Interval]]:
    """Both quantities of one cell, the first entry for one token and for the first position."""
    longest = max(map(len, prompts[FIELD]))
    counts = np.array([[*steps, *[0] * (longest - len(steps))] for steps in prompts[FIELD]], np.float64)
    reached = counts[:, ::-1].cumsum(axis=1)[:, ::-1]  # steps that emitted so many tokens or more
    return {
        SHARE: [Interval(ratio(counts[:, place], reached[:, 0]).value) for place in range(longest)],
        POSITION: [ratio(reached[:, place + 1], reached[:, place]) for place in range(longest - 1)],
    }


def _table(
    stem: str, quantity: str, results: Results, measured: dict[str, dict[str, list[Interval]]]
) -> Table:
    """A line for every cell, a column for every number of tokens or position."""
    header, spec = ("Emitted", ".1%") if quantity == SHARE else ("Position", ".2f")
    rows, width = [], max(len(numbers[quantity]) for numbers in measured.values())
    for cell in results.cells.to_dict("records"):
        numbers = measured.get(cell["cell_id"], {quantity: [ABSENT]})[quantity]
        rows += long.records(results.about(cell), dict(enumerate(numbers, start=1)))
    frame = pd.DataFrame(rows)
    varying, fixed = long.split_keys(results.cells, (*results.setting, "tree", "method"))
    shown = long.names(varying)
    shown += [long.number(f"{header} {place}", spec, place) for place in range(1, width + 1)]
    lines = long.tabulate(frame, ["cell_id", *results.keys], shown)
    return Table(stem, *lines, CAPTIONS[quantity] + fixed, frame)
