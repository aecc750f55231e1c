"""Summaries of an artefact: a line a method on its tree, with ranges over the data sets."""

from collections.abc import Callable, Mapping
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
    texts: Mapping[str, Any],
    more: Mapping[Column, Callable[[tuple[str, ...]], str]] = {},
) -> Table:
    """The summary of an artefact's long frame.

    columns: metric -> its printed name; each has a column a temperature. texts: `summary_caption`
    and `summary`, its notes. more: further columns, each with the text of a method, (decoder, tree,
    verifier).
    """
    places = [(metric, at) for metric in columns for at in TEMPERATURES]
    shown = [
        Column("method", "Method and tree", "key"),
        *(Column(metric.name, f"{columns[metric]}, T = {at:g}", "number") for metric, at in places),
        *more,
        Column("verdict", "Audit", "audit"),
    ]
    lines, records = [], []
    for method, rows in frame.groupby(METHOD, sort=False):
        decoder, tree, verifier = method
        cells: list[TableCell] = [Key(method, labels.method_on_tree(decoder, verifier, tree))]
        for metric, at in places:
            values = rows.value[(rows.temperature == at) & (rows.quantity == metric.name)]
            low, high = values.min(), values.max()
            place = dict(zip(METHOD, method, strict=True)) | {"temperature": at}
            records.append(place | {"quantity": metric.name, "low": low, "high": high})
            cells.append(Paper(low, high, metric.spec))
        cells += [text(tuple(map(str, method))) for text in more.values()]
        lines.append((*cells, audits.counted(rows.verdict[rows.quantity == ACCEPTED_LENGTH.name])))
    law = long.split_keys(frame, filters_in(frame))[1]
    notes = Notes(tuple(texts["summary"]))
    caption = texts["summary_caption"] + law
    return Table(stem, tuple(shown), tuple(lines), caption, pd.DataFrame(records), notes)
