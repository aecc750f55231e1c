"""Steps of cells that decode: how many tokens each emitted, and where acceptance ends."""

from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd

from analysis import labels, long
from analysis.load import SETTING, Plan, Results, load, with_filters_off
from analysis.stats import ABSENT, Interval, ratio
from analysis.table import Table

FIELD = "histogram"
"""Field of the rows of a cell that decodes: [k] is the number of steps
that emitted k + 1 tokens.
"""
SHARE, POSITION = "step_share", "position_acceptance"
CAPTIONS = {
    SHARE: "Histogram of the accepted length: the share of the steps that emitted 1, 2, 3, … "
    "tokens, the resampled or bonus token included.",
    POSITION: "Acceptance by position: of the steps that accepted all drafted tokens before it, "
    "the share that accepted the one at this depth of the tree, too.",
}


def of(plan: Plan) -> tuple[Table, ...]:
    """Both tables, with a line for each timed cell that drafts; empty if no finished cell decodes.

    A cell that is not done has a line that says so, if its part decodes. Shares of steps add up to
    1 and are printed without intervals.
    """
    loaded = map(load, plan.only(lambda cell: cell.labels["tree"] and not cell.is_audit).by_part())
    parts = [part for part in loaded if any(FIELD in prompts for prompts in part.rows.values())]
    if not parts:
        return ()
    keys = tuple(dict.fromkeys(key for part in parts for key in part.keys))
    cells = with_filters_off(pd.concat([part.cells for part in parts])).fillna("")
    cells = cells.drop_duplicates(["cell_id", *keys])
    cells = cells.sort_values(
        [*SETTING], key=lambda column: column.map(partial(labels.rank, column.name))
    )
    results = Results(
        cells, {name: rows for part in parts for name, rows in part.rows.items()}, keys
    )
    return tuple(_table(f"{plan.artefact}_{quantity}", quantity, results) for quantity in CAPTIONS)


def _measure(prompts: pd.DataFrame, quantity: str) -> list[Interval]:
    """The values of a quantity in one cell; the first value is for one token,
    or for the first position.
    """
    counts = pd.DataFrame(prompts[FIELD].tolist()).fillna(0).to_numpy(np.float64)
    reached = counts[:, ::-1].cumsum(axis=1)[:, ::-1]  # [:, k]: steps with at least k + 1 tokens
    if quantity == SHARE:
        return [Interval(ratio(count, reached[:, 0]).value) for count in counts.T]
    return [ratio(further, so_far) for so_far, further in pairwise(reached.T)]


def _table(stem: str, quantity: str, results: Results) -> Table:
    """The table of a quantity: a line per cell, a column per number of tokens or position."""
    header, spec = ("Emitted", ".1%") if quantity == SHARE else ("Position", ".2f")
    rows, width = [], 0
    for about, prompts in results.each():
        numbers = [ABSENT]
        if prompts is not None:
            numbers = _measure(prompts, quantity)
            width = max(width, len(numbers))
        rows += long.records(about, dict(enumerate(numbers, start=1)))
    frame = pd.DataFrame(rows)
    varying, fixed = long.split_keys(results.cells, (*results.setting, "tree", "method"))
    columns = [long.number(f"{header} {place}", spec, place) for place in range(1, width + 1)]
    lines = long.tabulate(frame, ["cell_id", *results.keys], [*long.names(varying), *columns])
    return Table(stem, *lines, CAPTIONS[quantity] + fixed, frame)
