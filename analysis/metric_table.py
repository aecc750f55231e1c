"""Tables of cells that decode: every cell's metrics in long form, and the printed table of them.

A line is a cell with its own metrics, or a setting with those of several verifiers side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from analysis import audits, labels, metrics
from analysis.artefact import key_cells, key_columns, split_keys
from analysis.load import SETTING, Results
from analysis.metrics import Metric
from analysis.stats import ABSENT, BRACKETS, Interval
from analysis.table import Audit, Cell, Column, Gap, Key, Note, Notes, Number, Paper, Table, Text
from resispec.errors import InvalidInput

# The decoder and the tree whose standard rule a cell is compared with, from its labels.
Baseline: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
Figure: TypeAlias = Callable[[Mapping[str, Any]], tuple[float, float]]
"""The lowest and the highest figure of the paper for a row of the long frame, NaN where it has none."""
NO_FIGURE = (np.nan, np.nan)
CEILING = "ceiling"
"""Stands for a verifier: the most that an exact one can reach."""


def same_decoder(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell is compared with the standard rule of its own decoder on its own tree."""
    return {"decoder": cell["decoder"], "tree": cell["tree"]}


def measure(
    results: Results, baseline: Baseline = same_decoder, figure: Figure = lambda _: NO_FIGURE
) -> pd.DataFrame:
    """One row for every cell that is no audit and every quantity: METRICS and those of its audit.

    Columns: cell_id, the keys, status, reason, num_prompts, quantity, value, lower, upper, paper_low,
    paper_high, verdict. A value is NaN where the cell or its baseline has no prompts, and for a baseline and
    itself.

    baseline: what a cell is compared with, of the same pair, data set, temperature and whatever else the
    sweep varied.
    """
    timed = results.cells[~results.cells.is_audit]
    audited, rows = audits.by_labels(results), []
    for cell in timed.to_dict("records"):
        audit = audited.get(tuple(cell[key] for key in results.keys), {})
        numbers = _metrics(cell, timed, results, baseline)
        numbers |= {name: Interval(float(audit.get(name, np.nan))) for name in audits.QUANTITIES}
        for quantity, interval in numbers.items():
            row = results.about(cell) | {"quantity": quantity} | vars(interval)
            low, high = figure(row)
            rows.append(row | {"paper_low": low, "paper_high": high, "verdict": audit.get("verdict", "")})
    values = ["value", "lower", "upper", "paper_low", "paper_high"]
    names = ["cell_id", *results.keys, "status", "reason", "num_prompts", "quantity", *values, "verdict"]
    return pd.DataFrame(rows, columns=names).astype(dict.fromkeys(values, float))


def _metrics(
    cell: Mapping[str, Any], timed: pd.DataFrame, results: Results, baseline: Baseline
) -> dict[str, Interval]:
    """Every metric of one cell."""
    numbers, prompts = {metric.name: ABSENT for metric in metrics.METRICS}, results.rows.get(cell["cell_id"])
    if prompts is None:
        return numbers
    setting = {key: cell[key] for key in (*SETTING, *results.more)}
    over = {"standard": {"decoder": cell["decoder"], "verifier": "standard"} | baseline(cell)}
    over["autoregressive"] = {"decoder": "autoregressive"}
    for metric in metrics.METRICS:
        if not metric.over:
            numbers[metric.name] = metric.of(prompts)
        elif cell["decoder"] != "autoregressive":
            other = _only(timed, setting | over[metric.over])
            if other != cell["cell_id"] and other in results.rows:
                numbers[metric.name] = metric.of(prompts, results.rows[other])
    return numbers


def _only(cells: pd.DataFrame, wanted: Mapping[str, Any]) -> str:
    """The cell with these labels, or an empty string. Raises InvalidInput when there are several."""
    is_wanted = [
        all(cell[key] == value for key, value in wanted.items()) for cell in cells.to_dict("records")
    ]
    matches = cells.cell_id[is_wanted].unique().tolist()
    if len(matches) > 1:
        named = {key: str(value) for key, value in wanted.items()}
        raise InvalidInput(
            f"cell {matches[1]}: has the labels of {matches[0]}; a baseline must be one cell ({named})"
        )
    return matches[0] if matches else ""


def with_quantity(
    frame: pd.DataFrame, quantity: str, value: Callable[[Mapping[str, Any]], Interval]
) -> pd.DataFrame:
    """A long frame with another quantity of every cell, given its row of the accepted length."""
    rows = frame[frame.quantity == metrics.ACCEPTED_LENGTH.name]
    if rows.empty:
        return frame
    values = pd.DataFrame([vars(value(row)) for row in rows.to_dict("records")], index=rows.index)
    return pd.concat([frame, rows.assign(quantity=quantity, **values)], ignore_index=True)


def figures_of(columns: Mapping[tuple[str, str], str], match: Callable[[Any], pd.DataFrame]) -> Figure:
    """The paper's figures of cells: the range of a column over the rows that `match` gives for a cell.

    columns: (verifier, quantity) -> the column of the paper's table.
    """

    def figure(row: Mapping[str, Any]) -> tuple[float, float]:
        column = columns.get((row["verifier"], row["quantity"]))
        found = match(row)[column].astype(float) if column else pd.Series(dtype=float)
        return (found.min(), found.max()) if len(found) else NO_FIGURE

    return figure


@dataclass(frozen=True)
class Shown:
    """A column of a metric. verifier: whose, where several stand side by side; header: its own then."""

    metric: Metric
    verifier: str = ""
    header: str = ""


KeyColumns: TypeAlias = Mapping[Column, Callable[[Mapping[str, Any]], Key]]
"""Names of a line: columns, and their cells from the first row of a line."""


def label_keys(names: Sequence[str]) -> dict[Column, Callable[[Mapping[str, Any]], Key]]:
    """The columns of labels that name a line."""
    return {
        column: lambda row, name=name: key_cells(row, [name])[0]  # type: ignore[misc]
        for name, column in zip(names, key_columns(names), strict=True)
    }


def by_cell(
    stem: str,
    results: Results,
    frame: pd.DataFrame,
    caption: str,
    notes: Notes,
    columns: Sequence[Metric],
) -> Table:
    """The table of a long frame with a line for every cell.

    A metric for which the paper has figures is followed by them. A cell that is not done shows its status in
    place of its first metric.
    """
    cells = results.cells[~results.cells.is_audit].assign(method="")
    varying, fixed = split_keys(cells, (*SETTING, *results.more, "tree", "method"))
    groups = [rows for _, rows in frame.groupby(["cell_id", *results.keys], sort=False)]
    lines = _lines(groups, label_keys(varying), [Shown(metric) for metric in columns])
    return Table(stem, *lines, caption + fixed, frame, notes)


def side_by_side(
    stem: str, frame: pd.DataFrame, keys: KeyColumns, columns: Sequence[Shown], caption: str, notes: Notes
) -> Table:
    """The table of a long frame with a line for every setting, and several verifiers in it.

    The last columns are the verdicts of the verifiers' audits, where there are any. A note names methods
    whose verifier has no column.
    """
    has_column = frame.verifier.isin([column.verifier for column in columns])
    rows = frame[has_column]
    lines = [tuple(str(cell(row)) for cell in keys.values()) for row in rows.to_dict("records")]
    groups = [own for _, own in rows.groupby(pd.Series(lines, rows.index, dtype=object), sort=False)]
    others = frame[~has_column]
    methods = dict.fromkeys(
        labels.method(*pair) for pair in zip(others.decoder, others.verifier, strict=True)
    )
    left_out = [f"Not in this table: {', '.join(methods)}; the CSV has them."] if methods else []
    notes = replace(notes, about=(*left_out, *notes.about))
    return Table(stem, *_lines(groups, keys, columns), caption, frame, notes)


def _lines(
    groups: Sequence[pd.DataFrame], keys: KeyColumns, shown: Sequence[Shown]
) -> tuple[tuple[Column, ...], tuple[tuple[Cell, ...], ...]]:
    """The columns and the lines of a table. groups: the rows of every line, in long form."""
    is_side_by_side = any(column.verifier for column in shown)
    rows = pd.concat([pd.DataFrame(columns=["verifier", "quantity", "paper_low", "verdict"]), *groups])
    verifiers = rows.verifier if is_side_by_side else pd.Series("", rows.index)
    with_paper = set(
        zip(verifiers[rows.paper_low.notna()], rows.quantity[rows.paper_low.notna()], strict=True)
    )
    audited = [
        verifier
        for verifier in dict.fromkeys(column.verifier for column in shown)
        if (rows.verdict[verifiers == verifier] != "").any()
    ]
    columns = list(keys)
    for column in shown:
        key, header = column.metric.name, column.header or column.metric.label
        columns.append(Column(key, header, "number", column.verifier))
        if (column.verifier, key) in with_paper:
            header = f"{header} (paper)" if is_side_by_side else "(paper)"
            columns.append(Column(key, header, "paper", column.verifier))
    for verifier in audited:
        header = f"Audit of {labels.name('verifier', verifier)}" if is_side_by_side else "Audit"
        columns.append(Column("verdict", header, "audit", verifier))
    lines = []
    for group in groups:
        found = {
            (row["verifier"] if is_side_by_side else "", row["quantity"]): row
            for row in group.to_dict("records")
        }
        cells: list[Cell] = [cell(group.iloc[0]) for cell in keys.values()]
        told = set()
        for column in shown:
            place = (column.verifier, column.metric.name)
            row = found.get(place)
            if row is not None and row["status"] != "done" and column.verifier not in told:
                told.add(column.verifier)
                cells.append(Gap(row["status"], row["reason"]))
            else:
                cells.append(Text() if row is None else Number.of(row, column.metric.spec))
            if place in with_paper:
                paper = NO_FIGURE if row is None else (row["paper_low"], row["paper_high"])
                cells.append(Paper(*paper, column.metric.paper_spec))
        for verifier in audited:
            rows = {name: found[verifier, name] for name in audits.QUANTITIES if (verifier, name) in found}
            numbers = {name: row["value"] for name, row in rows.items()}
            verdicts = [row["verdict"] for row in rows.values()]
            cells.append(audits.cell_of(numbers | {"verdict": verdicts[0]}) if rows else Audit())
        lines.append(tuple(cells))
    return tuple(columns), tuple(lines)


def definitions(columns: Sequence[Metric], results: Results) -> tuple[Note, ...]:
    """The notes that say what the columns mean."""
    meanings = {metric.label: metric.definition for metric in columns}
    return (meanings, BRACKETS, *([audits.DEFINITION] if results.cells.is_audit.any() else []))


def shown_cells(results: Results, columns: Sequence[Shown]) -> pd.DataFrame:
    """The cells that have columns: no audits, and none of other verifiers."""
    verifiers = [column.verifier for column in columns]
    return results.cells[~results.cells.is_audit & results.cells.verifier.isin(verifiers)]
