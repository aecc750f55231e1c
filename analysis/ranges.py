"""Summaries of an artefact: a line a method on its tree, with ranges over the data sets."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import audits, labels, long
from analysis.audits import METHOD
from analysis.load import filters_in
from analysis.metrics import ACCEPTED_LENGTH, Metric
from analysis.table import Column, Key, Notes, Paper, Table, TableCell

TEMPERATURES = (1.0, 0.6)
"""Temperatures of the summaries: the paper's."""


def by_method(
    stem: str,
    frame: pd.DataFrame,
    columns: Mapping[Metric, str],
    overall: Sequence[Metric],
    texts: Mapping[str, Any],
) -> Table:
    """The summary of an artefact's long frame.

    columns: metric -> its printed name; each has a column a temperature. overall: metrics with one
    column, for both temperatures. Metrics that no cell has are left out. A method that was measured
    on fewer data sets than another one says so. texts: `summary_caption` and `summary`, its notes.
    """
    known = set(frame.quantity[frame.value.notna()])
    places: list[tuple[Metric, str, tuple[float, ...]]] = [
        (metric, f"{name}, T = {at:g}", (at,))
        for metric, name in columns.items()
        for at in TEMPERATURES
        if metric.name in known
    ]
    places += [(metric, metric.label, TEMPERATURES) for metric in overall if metric.name in known]
    shown = [
        Column("method", "Method and tree", "key"),
        *(Column(metric.name, header, "number") for metric, header, _ in places),
        Column("verdict", "Audit", "audit"),
    ]
    lines, records = [], []
    methods = list(frame.groupby(METHOD, sort=False))
    counts = [num_measured(rows[rows.temperature.isin(TEMPERATURES)]) for _, rows in methods]
    for (method, rows), count in zip(methods, counts, strict=True):
        decoder, tree, verifier = method
        name = labels.method_on_tree(decoder, verifier, tree) + of_data_sets(count, counts)
        cells: list[TableCell] = [Key(method, name)]
        for metric, _, temperatures in places:
            is_here = rows.temperature.isin(temperatures) & (rows.quantity == metric.name)
            low, high = rows.value[is_here].min(), rows.value[is_here].max()
            cells.append(Paper(low, high, metric.spec))
            for at in temperatures:
                values = rows.value[is_here & (rows.temperature == at)]
                place = dict(zip(METHOD, method, strict=True)) | {"temperature": at}
                ends = {"low": values.min(), "high": values.max()}
                records.append(place | {"quantity": metric.name} | ends)
        lines.append((*cells, audits.counted(rows.verdict[rows.quantity == ACCEPTED_LENGTH.name])))
    law = long.split_keys(frame, filters_in(frame))[1]
    notes = Notes(tuple(texts["summary"]))
    caption = texts["summary_caption"] + law
    return Table(stem, tuple(shown), tuple(lines), caption, pd.DataFrame(records), notes)


def num_measured(rows: pd.DataFrame) -> int:
    """The number of data sets with an accepted length, at the temperature with the fewest."""
    lengths = rows[rows.quantity == ACCEPTED_LENGTH.name]
    counts = lengths.assign(is_measured=lengths.value.notna()).groupby("temperature").is_measured
    return int(counts.sum().min()) if len(lengths) else 0


def of_data_sets(count: int, counts: Sequence[int]) -> str:
    """Words behind the name of a method with fewer data sets than another one; "" for others.

    The mean of such a method is of other texts. counts: of all methods.
    """
    return f" ({count} of {max(counts)} data sets)" if count < max(counts) else ""
