"""Accepted length by category of prompts, of every plan whose prompts have categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from analysis import audits, labels, metrics
from analysis.decoded import measure
from analysis.load import LABELS, SETTING, Plan, Results, load
from analysis.metrics import ACCEPTED_LENGTH
from analysis.report import Table, key_texts, split_keys
from analysis.stats import BRACKETS, Interval

FIELD = "category"
"""Of rows whose prompts have one."""
ALL = "all prompts"
"""All prompts of a cell, in place of a category."""
MEASURED = ("cell_id", "status", "reason", FIELD, "num_prompts", "quantity", "value", "lower", "upper")
CAPTION = "Accepted length by category of prompts."
DEFINITION = (
    f"Accepted length: {ACCEPTED_LENGTH.definition}. The CSV also has the tokens/s of every category, and "
    "its gain and speedups over the same prompts of the baselines."
)


def stem(artefact: str) -> str:
    """The name of an artefact's table."""
    return f"{artefact}_categories"


def of(plan: Plan) -> Table | None:
    """The table of a plan; None where no finished cell has prompts with categories.

    A line for every timed cell on a data set with categories. Its frame has MEASURED and the cells' labels, a
    row for every cell, category and quantity of `metrics.METRICS`.
    """
    frames = []
    for part in dict.fromkeys(one.part for one in plan.requests):
        timed = [one for one in plan.requests if one.part == part and not one.is_audit]
        frames.append(_by_category(load(replace(plan, requests=tuple(timed)), ())))
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if frame.empty:
        return None
    keys = [name for name in frame if name not in MEASURED]
    frame[keys] = frame[keys].fillna("")
    frame = frame.drop_duplicates([*keys, FIELD, "quantity"], ignore_index=True)
    varying, fixed = split_keys(
        frame.assign(method=""), (*SETTING, *(key for key in keys if key not in LABELS), "tree", "method")
    )
    shown = _shown(frame, keys, varying)
    return Table(stem(plan.artefact), frame, shown, len(varying), CAPTION + fixed, (DEFINITION, BRACKETS))


def _by_category(results: Results) -> pd.DataFrame:
    """The frame of one sweep, whose cells are compared with each other; empty where there is no category."""
    fields = {*metrics.fields(), FIELD}
    rows = {cell_id: found for cell_id, found in results.rows.items() if fields <= set(found)}
    cells = results.cells
    datasets = cells.dataset[cells.cell_id.isin(rows)]
    cells = cells[cells.dataset.isin(datasets) & (cells.cell_id.isin(rows) | (cells.status != "done"))]
    known = dict.fromkeys(name for found in rows.values() for name in found[FIELD].dropna())
    frames = [measure(replace(results, cells=cells, rows=rows)).assign(**{FIELD: ALL})] if known else []
    for name in known:
        own = {cell_id: found[found[FIELD] == name] for cell_id, found in rows.items()}
        own = {cell_id: found for cell_id, found in own.items() if len(found)}
        asked = replace(results, cells=cells[cells.cell_id.isin(own)], rows=own)
        frames.append(measure(asked).assign(**{FIELD: name}))
    if not frames:
        return pd.DataFrame()
    frame = pd.concat(frames, ignore_index=True)[
        ["cell_id", *results.keys, *(name for name in MEASURED if name != "cell_id")]
    ]
    return frame[~frame.quantity.isin(audits.QUANTITIES)]


def _shown(frame: pd.DataFrame, keys: Sequence[str], varying: Sequence[str]) -> pd.DataFrame:
    """A line for every cell, a column for every category."""
    lengths = frame[frame.quantity == ACCEPTED_LENGTH.name]
    names = sorted(dict.fromkeys(lengths[FIELD]), key=lambda name: name == ALL)
    lines = []
    for _, rows in lengths.groupby(list(keys), sort=False):
        first, by_name = rows.iloc[0], rows.set_index(FIELD)
        texts = [labels.ABSENT] * len(names)
        for place, name in enumerate(names):
            if name in by_name.index:
                found = by_name.loc[name]
                interval = Interval(found.value, found.lower, found.upper)
                texts[place] = labels.interval(interval, ACCEPTED_LENGTH.spec)
        if first.status != "done":
            texts[0] = labels.gap(first)
        lines.append([*key_texts(first, varying), *texts])
    return pd.DataFrame(
        lines, columns=[*map(labels.header, varying), *(name.replace("_", " ") for name in names)]
    )
