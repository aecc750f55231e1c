"""Steps of cells that decode: how many tokens each emitted, and where acceptance ends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from analysis import labels
from analysis.load import SETTING, Plan, Results, load
from analysis.metric_table import by_cell
from analysis.metrics import Metric
from analysis.stats import ABSENT, Interval, ratio
from analysis.table import Notes, Table

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
    if (results := _decoding(plan)) is None:
        return ()
    measured = {cell_id: _measure(prompts) for cell_id, prompts in results.rows.items()}
    return tuple(_table(f"{plan.artefact}_{quantity}", quantity, results, measured) for quantity in CAPTIONS)


def _decoding(plan: Plan) -> Results | None:
    """The timed cells of all parts that decode, in the order of print, and the rows of finished ones."""
    parts = []
    for part in dict.fromkeys(request.part for request in plan.requests):
        timed = [one for one in plan.requests if one.part == part and not one.is_audit and one.labels["tree"]]
        results = load(replace(plan, requests=tuple(timed)))
        if any(FIELD in prompts for prompts in results.rows.values()):
            parts.append(results)
    if not parts:
        return None
    keys = tuple(dict.fromkeys(key for results in parts for key in results.keys))
    cells = pd.concat([results.cells for results in parts]).fillna("").drop_duplicates(["cell_id", *keys])
    ranks = {name: cells[name].map(partial(labels.rank, name)) for name in SETTING}
    cells = cells.iloc[np.lexsort([*reversed(ranks.values())])]
    return Results(cells, {name: rows for results in parts for name, rows in results.rows.items()}, keys)


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
        about = results.about(cell) | {"paper_low": np.nan, "verdict": ""}
        rows += [
            about | vars(number) | {"quantity": str(place)} for place, number in enumerate(numbers, start=1)
        ]
    columns = [Metric(str(place), f"{header} {place}", "", spec=spec) for place in range(1, width + 1)]
    return by_cell(stem, results, pd.DataFrame(rows), CAPTIONS[quantity], Notes(), columns)
