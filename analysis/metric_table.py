"""Tables of cells that decode: a long frame of all cells' metrics, and the table printed of it.

A line of it is a cell with its own metrics, or a setting with several verifiers side by side.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from analysis import audits, labels, long, metrics
from analysis.load import (
    APART,
    FILTERS_OFF,
    Plan,
    Results,
    are_alike,
    filters_in,
    listed,
)
from analysis.metrics import Metric
from analysis.stats import ABSENT, BRACKETS, RUN_SPREAD, Interval
from analysis.table import Audit, Column, Found, Note, Notes, Table
from resispec.errors import InvalidInput

Baseline: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From a cell's labels to those that its baseline does not share; it is the standard rule, unless
another verifier is among them.
"""
ACROSS_RUNS = "across_runs"
"""Key in `attrs` of `measure`'s frame: by cell, the names of ratios of times not timed in turn."""
RUNS_DIFFER = (
    "Speedups of cells that one process did not time in turn: their intervals cover how much runs "
    f"differ, too: a standard deviation of {100 * RUN_SPREAD:.0f} % in the tokens/s of one cell "
    "measured again."
)
MetricColumn: TypeAlias = tuple[Metric, str, str]
"""A metric, its verifier where several stand side by side (else ""), and the column's header."""


def standard_beside(_: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline that is the standard rule with the cell's own decoder and tree."""
    return {}


def specinfer_on_d5b3(_: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline that is SpecInfer's standard rule on the paper's tree."""
    return {"decoder": "specinfer", "tree": "d5b3"}


def of_eagle(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline of Table 2: EAGLE's own for the paper's reading of its candidates."""
    return {"decoder": "eagle"} if cell["decoder"] == "eagle_softmax" else {}


BASELINES: Mapping[str, Baseline] = {
    "table2": of_eagle,
    "frontier": specinfer_on_d5b3,
    "levels": specinfer_on_d5b3,
    "field": specinfer_on_d5b3,
    "overview": specinfer_on_d5b3,
}
"""Baselines of artefacts whose gains are not over `standard_beside`."""


def baseline_of(plan: Plan) -> Baseline:
    """The baseline of a plan's gains: that of the artefact that all of its cells are of."""
    names = {cell.of.partition("/")[0] or plan.artefact for cell in plan.requests}
    return BASELINES.get(names.pop(), standard_beside) if len(names) == 1 else standard_beside


def measure(
    results: Results,
    baseline: Baseline = standard_beside,
    wanted: Sequence[Metric] | None = None,
) -> pd.DataFrame:
    """A long frame with a row for each cell, audits excepted, and each quantity.

    The quantities are `wanted`, by default METRICS, and those of the cell's audit. Columns:
    cell_id, the keys, status, reason, num_prompts, quantity, value, lower, upper, paper_low,
    paper_high (NaN, see `with_figures`), verdict. A value is NaN if the cell or its baseline has no
    prompts, or if the baseline is the cell itself.

    baseline: gives the decoder and the tree whose standard rule, or another verifier if it gives
    one, a cell is compared with; all other keys are the cell's own. Raises InvalidInput when
    several cells are the baseline.
    """
    timed = results.timed.to_dict("records")
    across_runs = defaultdict[str, list[str]](list)
    verdicts, cell_ids = audits.by_labels(results), defaultdict[tuple[Any, ...], set[str]](set)
    elsewhere = defaultdict[tuple[Any, ...], set[str]](set)
    for cell in timed:
        cell_ids[results.place(cell)].add(cell["cell_id"])
        elsewhere[results.place(cell, APART)].add(cell["cell_id"])

    def of(metric: Metric, cell: dict[str, Any]) -> Interval:
        prompts = results.rows.get(cell["cell_id"])
        if prompts is None or not metric.is_in(prompts):
            return ABSENT
        if metric.over and cell["decoder"] == "autoregressive":
            return ABSENT
        if not metric.over:
            return metric.of(prompts)
        reference = {"decoder": "autoregressive", "tree": "", "verifier": ""}
        if metric.over == "standard":
            reference = {"verifier": "standard", **baseline(cell)}
        ids = sorted(cell_ids[results.place(cell | reference)])
        if not ids:  # of a sweep of one's own, the baseline may be of another part
            others = elsewhere[results.place(cell | reference, APART)]
            ids = sorted(others) if len(others) == 1 else []
        if len(ids) > 1:
            raise InvalidInput(
                f"cell {ids[1]}: has the labels of {ids[0]}; a baseline must be one cell "
                f"({reference})"
            )
        rows = results.rows.get(ids[0]) if ids and ids[0] != cell["cell_id"] else None
        if rows is None or not metric.is_in(rows):
            return ABSENT
        if not are_alike(prompts, rows):
            return ABSENT
        gain = metric.of(prompts, rows)
        if metric.is_across_runs(prompts, rows) and not math.isnan(gain.value):
            across_runs[cell["cell_id"]].append(metric.name)
        return gain

    rows = []
    measured = metrics.shown(metrics.METRICS if wanted is None else wanted, results.rows.values())
    for cell in timed:
        audit = verdicts.get(results.place(cell), {})
        numbers = {metric.name: of(metric, cell) for metric in measured}
        numbers |= {name: Interval(float(audit.get(name, np.nan))) for name in audits.QUANTITIES}
        rows += long.records(results.about(cell) | {"verdict": audit.get("verdict", "")}, numbers)
    values = ["value", "lower", "upper", "paper_low", "paper_high"]
    columns = [
        "cell_id",
        *results.keys,
        "status",
        "reason",
        "num_prompts",
        "quantity",
        *values,
        "verdict",
    ]
    frame = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(values, float))
    frame.attrs[ACROSS_RUNS] = across_runs
    return frame


def with_quantity(
    frame: pd.DataFrame, quantity: str, value: Callable[[Mapping[str, Any]], Interval]
) -> pd.DataFrame:
    """A long frame with one more quantity per cell.

    value: gives it from the row of the accepted length.
    """
    rows = frame[frame.quantity == metrics.ACCEPTED_LENGTH.name]
    if rows.empty:
        return frame
    values = pd.DataFrame([vars(value(row)) for row in rows.to_dict("records")], index=rows.index)
    return pd.concat([frame, rows.assign(quantity=quantity, **values)], ignore_index=True)


def with_measured(
    frame: pd.DataFrame,
    names: Iterable[str],
    place: Callable[[Mapping[str, Any]], Hashable],
    measured: Mapping[Hashable, tuple[Mapping[str, Interval], int]],
) -> pd.DataFrame:
    """A long frame with quantities that other cells measured; NaN where none of them did.

    names: of the quantities. place: of a row or its cell, what both share. measured: by place, the
    quantities and the number of prompts that they are of.
    """
    for name in names:
        frame = with_quantity(
            frame, name, lambda row, name=name: measured.get(place(row), ({}, 0))[0].get(
                name, ABSENT
            )
        )  # fmt: skip
        is_own = frame.quantity == name
        counts = [
            measured.get(place(row), ({}, row["num_prompts"]))[1]
            for row in frame[is_own].to_dict("records")
        ]
        frame.loc[is_own, "num_prompts"] = counts
    return frame


def of_other_prompts(frame: pd.DataFrame, metric: Metric) -> list[Note]:
    """A note if a quantity is of fewer or more prompts than its cells' tokens; else nothing."""
    known = frame[frame.value.notna()].set_index("cell_id")
    decoded, own = (
        known.num_prompts[known.quantity == name].to_dict()
        for name in (metrics.ACCEPTED_LENGTH.name, metric.name)
    )
    others = dict.fromkeys(
        f"{own[cell_id]} where {count} were decoded"
        for cell_id, count in decoded.items()
        if own.get(cell_id, count) != count
    )
    return [f"{metric.label}: number of prompts {listed(others)}."] if others else []


def with_gain(
    frame: pd.DataFrame, results: Results, metric: Metric, baseline: Baseline
) -> pd.DataFrame:
    """A long frame with a gain in accepted length over another baseline; it takes metric's name."""
    rows = measure(results, baseline, [metrics.GAIN])
    rows = rows[rows.quantity == metrics.GAIN.name].assign(quantity=metric.name)
    return pd.concat([frame, rows], ignore_index=True)


def with_figures(
    frame: pd.DataFrame,
    columns: Mapping[tuple[str, str], str],
    beside: Callable[[Mapping[str, Any]], pd.DataFrame],
) -> pd.DataFrame:
    """A long frame with the paper's figures: per row the range of a column of the paper's rows.

    A row with a filter on has none, since the paper has no filters.

    columns: (verifier, quantity) -> column of the paper's table. beside: row -> the paper's rows.
    """
    frame = frame.assign(paper_low=np.nan, paper_high=np.nan)
    for place, row in frame.iterrows():
        column = columns.get((row["verifier"], row["quantity"]))
        if any(float(row[key]) != FILTERS_OFF[key] for key in filters_in(frame)):
            continue
        if column and column in (rows := beside(row)):
            frame.loc[place, ["paper_low", "paper_high"]] = rows[column].min(), rows[column].max()
    return frame


def by_cell(
    stem: str,
    results: Results,
    frame: pd.DataFrame,
    caption: str,
    notes: Notes,
    columns: Iterable[Metric],
) -> Table:
    """The table of a long frame with a line for every cell."""
    varying, fixed = long.split_keys(results.timed, (*results.setting, "tree", "method"))
    shown = [
        *long.names(varying),
        *_metric_columns(
            frame, [(one, "", one.label) for one in metrics.shown(columns, results.rows.values())]
        ),
    ]
    lines = long.tabulate(frame, ["cell_id", *results.keys], shown)
    return Table(stem, *lines, caption + fixed, frame, notes)


def side_by_side(
    stem: str,
    frame: pd.DataFrame,
    keys: Sequence[Column],
    columns: Sequence[MetricColumn],
    caption: str,
    notes: Notes,
) -> Table:
    """The table of a long frame: a line a setting, decoder and tree, with verifiers side by side.

    The last columns are the verdicts of the verifiers' audits, if there are any. A note names the
    methods whose verifier has no column.
    """
    rows = with_column(frame, columns)
    rest = frame.drop(rows.index)
    by = [name for name in list(frame)[1 : list(frame).index("status")] if name != "verifier"]
    shown = [*keys, *_metric_columns(rows, columns)]
    lines = long.tabulate(rows, by, shown, ("quantity", "verifier"))
    methods = dict.fromkeys(map(labels.method, rest.decoder, rest.verifier))
    omissions = [f"Not in this table: {', '.join(methods)}; the CSV has them."] if methods else []
    return Table(stem, *lines, caption, frame, replace(notes, about=(*omissions, *notes.about)))


def with_column(frame: pd.DataFrame, columns: Iterable[MetricColumn]) -> pd.DataFrame:
    """The rows whose verifier has a column."""
    return frame[frame.verifier.isin([verifier for _, verifier, _ in columns])]


def _metric_columns(frame: pd.DataFrame, columns: Sequence[MetricColumn]) -> list[Column]:
    """Columns of metrics, each followed by the paper's figures if any, then columns of verdicts."""
    shown, verdicts = [], {}
    for metric, verifier, header in columns:
        rows = frame[frame.verifier == verifier] if verifier else frame
        place = (metric.name, verifier) if verifier else (metric.name,)
        shown.append(long.number(header, metric.spec, *place, of=verifier))
        if rows.paper_low[rows.quantity == metric.name].notna().any():
            paper_header = f"{header} (paper)" if verifier else "(paper)"
            shown.append(long.figure(paper_header, ".2f", *place, of=verifier))
        if (rows.verdict != "").any():
            title = f"Audit of {labels.name('verifier', verifier)}" if verifier else "Audit"
            verdicts[verifier] = Column(
                "verdict", title, "audit", verifier, partial(_audit, of=place[1:])
            )
    return [*shown, *verdicts.values()]


def _audit(rows: Found, of: tuple[str, ...]) -> Audit:
    """The cell of the audit of a line's rows. of: the verifier, where there are several."""
    quantities = {name: rows.get((name, *of), long.NO_ROW) for name in audits.QUANTITIES}
    verdict = quantities["audited_tokens"].get("verdict", "")
    return audits.cell_of(
        {name: row["value"] for name, row in quantities.items()} | {"verdict": verdict}
    )


def definitions(columns: Sequence[Metric], results: Results) -> tuple[Note, ...]:
    """The notes that say what the columns mean."""
    columns = metrics.shown(columns, results.rows.values())
    meanings = {metric.label: metric.definition for metric in columns}
    of_times = _notes_of_times(results) if any(metric.is_timed for metric in columns) else []
    of_audits = (
        [audits.DEFINITION, *audits.of_many(results)] if results.cells.is_audit.any() else []
    )
    verdicts = {verdict["verdict"] for verdict in audits.by_labels(results).values()}
    of_enumeration = [audits.OF_ENUMERATION] if audits.ENUMERATED in verdicts else []
    return (meanings, BRACKETS, *of_times, *of_audits, *of_enumeration)


def _notes_of_times(results: Results) -> list[Note]:
    """The notes about times that cannot be compared; empty if all times can be."""
    cells = results.timed[results.timed.cell_id.isin(results.rows)]
    settings = cells.groupby([*results.setting], sort=False).cell_id if len(cells) else ()
    groups = [[results.rows[cell_id] for cell_id in cell_ids] for _, cell_ids in settings]
    of_devices = across_devices(cells, results.setting)
    is_apart = any(len(rows) > 1 and not metrics.timed_together(*rows) for rows in groups)
    rates = [
        (repr((cell["pair"], *(cell[key] for key in results.more))), results.rows[cell["cell_id"]])
        for cell in cells[cells.decoder == "autoregressive"].to_dict("records")
    ]
    notes = disagreement((work, metrics.TOKENS_PER_S.of(rows)) for work, rows in rates)
    return [*of_devices, *([RUNS_DIFFER] if is_apart else []), *notes]


def across_devices(cells: pd.DataFrame, setting: Sequence[str]) -> list[Note]:
    """A note if cells that are compared were measured on several devices; else nothing.

    cells: finished ones with their `device`. setting: keys that compared cells share.
    """
    by_setting = cells.groupby([*setting], sort=False).device if len(cells) else ()
    found = [[*dict.fromkeys(devices)] for _, devices in by_setting]
    several = listed(device for devices in found if len(devices) > 1 for device in devices)
    if not several:
        return []
    return [f"Cells of one setting were measured on {several}: times do not compare across them."]


def disagreement(rates: Iterable[tuple[str, Interval]]) -> list[Note]:
    """A note if cells that do the same work disagree by more than their intervals; else nothing.

    rates: tokens/s of autoregressive cells, each after a text that names its work, equal for equal
    work; those without an interval do not count. The work does not depend on the temperature and
    the data set.
    """
    by_work = defaultdict[str, list[Interval]](list)
    for work, rate in rates:
        if not math.isnan(rate.lower):
            by_work[work].append(rate)
    ranges = [
        f"between {min(rate.value for rate in group):.0f} and "
        f"{max(rate.value for rate in group):.0f}"
        for group in by_work.values()
        if max(rate.lower for rate in group) > min(rate.upper for rate in group)
    ]
    if not ranges:
        return []
    return [
        "Times compare within a setting alone: autoregressive cells of one pair do the same work "
        f"in every setting, and their tokens/s lie {' and '.join(ranges)}, further apart than "
        "their intervals."
    ]
