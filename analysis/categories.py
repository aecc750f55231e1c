"""Tables of the accepted length by category of prompts, for plans whose prompts have categories."""

from dataclasses import replace

import pandas as pd

from analysis import audits, long, metrics
from analysis.load import LABELS, SETTING, Plan, Results, load, told_apart, with_filters_off
from analysis.metric_table import Baseline, baseline_of, measure
from analysis.metrics import ACCEPTED_LENGTH
from analysis.stats import BRACKETS, few_prompts
from analysis.table import Notes, Table

FIELD = "category"
"""The field with the category of a row's prompt."""
ALL = "all prompts"
"""Name in place of a category for all prompts of a cell."""
MEASURED = (
    "cell_id",
    "status",
    "reason",
    FIELD,
    "num_prompts",
    "quantity",
    "value",
    "lower",
    "upper",
    "verdict",
)
CAPTION = "Accepted length by category of prompts."
DEFINITION = (
    f"Accepted length: {ACCEPTED_LENGTH.definition}. The CSV also has the tokens/s of every "
    "category, and its gain and speedups over the same prompts of the baselines."
)


def of(plan: Plan, name: str) -> Table | None:
    """The table of a plan; None if no finished cell has prompts with categories.

    name: what its stem begins with.

    The table has a line for each timed cell on a data set with categories, and a column for each
    category. Its frame has MEASURED and the cells' labels, with a row for each cell, category and
    quantity of METRICS. Cells of several parts with the same labels are told apart by their part.
    """
    baseline = baseline_of(plan)
    frames = [_by_category(load(part), baseline) for part in plan.first_runs.by_part()]
    frame = pd.concat([pd.DataFrame(), *frames], ignore_index=True)
    if frame.empty:
        return None
    keys = [name for name in frame if name not in (*MEASURED, "part")]
    frame[keys] = with_filters_off(frame[keys]).fillna("")
    keys = [*told_apart(frame, keys, ["part"])]
    frame = frame.drop_duplicates([*keys, FIELD, "quantity"], ignore_index=True)
    frame = frame[[name for name in frame if name in (*MEASURED, *keys)]]
    more = [key for key in keys if key not in LABELS]
    varying, fixed = long.split_keys(frame, (*SETTING, *more, "tree", "method"))
    lengths = frame[frame.quantity == ACCEPTED_LENGTH.name]
    names = sorted(dict.fromkeys(lengths[FIELD]), key=lambda name: name == ALL)
    columns = long.names(varying)
    columns += [long.number(name.replace("_", " "), ACCEPTED_LENGTH.spec, name) for name in names]
    columns += audits.columns(frame)
    lines = long.tabulate(lengths, keys, columns, (FIELD,))
    notes = Notes((DEFINITION, BRACKETS, *few_prompts(lengths.num_prompts.dropna())))
    return Table(f"{name}_categories", *lines, CAPTION + fixed, frame, notes)


def _by_category(results: Results, baseline: Baseline) -> pd.DataFrame:
    """The frame of one part, with its name; empty if no prompt has a category.

    Cells are compared within the part. baseline: that of its gains, see `measure`.
    """
    by_cell = {
        cell_id: rows for cell_id, rows in metrics.decoded(results.rows).items() if FIELD in rows
    }
    names = dict.fromkeys(name for rows in by_cell.values() for name in rows[FIELD].dropna())
    if not names:
        return pd.DataFrame()
    verdicts = audits.by_labels(results)
    cells = results.timed
    has_rows = cells.cell_id.isin(by_cell)
    cells = cells[
        cells.dataset.isin(cells.dataset[has_rows]) & (has_rows | (cells.status != "done"))
    ]
    whole = replace(results, cells=cells, rows=by_cell)
    frames = [measure(whole, baseline).assign(**{FIELD: ALL})]
    for name in names:
        of_category = {
            cell_id: rows[rows[FIELD] == name]
            for cell_id, rows in by_cell.items()
            if name in {*rows[FIELD]}
        }
        subset = replace(results, cells=cells[cells.cell_id.isin(of_category)], rows=of_category)
        frames.append(measure(subset, baseline).assign(**{FIELD: name}))
    frame = pd.concat(frames, ignore_index=True).assign(part=results.cells.part.iloc[0])
    found = (verdicts.get(results.place(row), {}) for row in frame.to_dict("records"))
    frame["verdict"] = [of_cell.get("verdict", "") for of_cell in found]
    return frame[~frame.quantity.isin(audits.QUANTITIES)][
        ["cell_id", *results.keys, *MEASURED[1:], "part"]
    ]
