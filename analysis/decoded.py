"""Tables of cells that decode: every cell's metrics in long form, and the printed table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import audits, labels, metrics
from analysis.load import SETTING, Results
from analysis.metrics import Metric
from analysis.report import Table, key_texts, split_keys
from analysis.stats import ABSENT, BRACKETS, Interval
from resispec.errors import InvalidInput

# The decoder and the tree whose standard rule a cell is compared with, from its labels.
Baseline = Callable[[Mapping[str, Any]], dict[str, str]]


def same_decoder(cell: Mapping[str, Any]) -> dict[str, str]:
    """A cell is compared with the standard rule of its own decoder on its own tree."""
    return {"decoder": cell["decoder"], "tree": cell["tree"]}


def measure(results: Results, baseline: Baseline = same_decoder) -> pd.DataFrame:
    """One row for every cell that is no audit and every quantity: METRICS and those of its audit.

    Columns: cell_id, the keys, status, reason, num_prompts, quantity, value, lower, upper, paper_low and
    paper_high (still NaN), verdict. A value is NaN where the cell or its baseline has no prompts, and for a
    baseline and itself.

    baseline: what a cell is compared with, of the same pair, data set, temperature and whatever else the
    sweep varied.
    """
    keys, timed = list(results.keys), results.cells[~results.cells.is_audit]
    audited, rows = audits.by_labels(results), []
    for cell in timed.to_dict("records"):
        audit = audited.get(tuple(cell[key] for key in keys), {})
        shared = {name: cell[name] for name in ("cell_id", *keys, "status", "reason")}
        shared["num_prompts"] = len(results.rows.get(cell["cell_id"], ()))
        found = _metrics(cell, timed, results, baseline)
        found |= {name: Interval(float(audit.get(name, np.nan))) for name in audits.QUANTITIES}
        for quantity, interval in found.items():
            paper = {"paper_low": np.nan, "paper_high": np.nan, "verdict": audit.get("verdict", "")}
            rows.append(shared | {"quantity": quantity} | vars(interval) | paper)
    numbers = ["value", "lower", "upper", "paper_low", "paper_high"]
    names = ["cell_id", *keys, "status", "reason", "num_prompts", "quantity", *numbers, "verdict"]
    return pd.DataFrame(rows, columns=names).astype(dict.fromkeys(numbers, float))


def _metrics(
    cell: Mapping[str, Any], timed: pd.DataFrame, results: Results, baseline: Baseline
) -> dict[str, Interval]:
    """Every metric of one cell."""
    found, own = {metric.name: ABSENT for metric in metrics.METRICS}, results.rows.get(cell["cell_id"])
    if own is None:
        return found
    setting = {key: cell[key] for key in (*SETTING, *results.more)}
    over = {"standard": {"decoder": cell["decoder"], "verifier": "standard"} | baseline(cell)}
    over["autoregressive"] = {"decoder": "autoregressive"}
    for metric in metrics.METRICS:
        if not metric.over:
            found[metric.name] = metric.of(own)
        elif cell["decoder"] != "autoregressive":
            other = _only(timed, setting | over[metric.over])
            if other != cell["cell_id"] and other in results.rows:
                found[metric.name] = metric.of(own, results.rows[other])
    return found


def _only(cells: pd.DataFrame, wanted: Mapping[str, Any]) -> str:
    """The cell with these labels, or an empty string. Raises InvalidInput when there are several."""
    matches = cells.cell_id[(cells[list(wanted)] == pd.Series(wanted)).all(axis=1)].unique().tolist()
    if len(matches) > 1:
        raise InvalidInput(
            f"cell {matches[1]}: has the labels of {matches[0]}; a baseline must be one cell ({dict(wanted)})"
        )
    return matches[0] if matches else ""


def table(
    stem: str,
    results: Results,
    frame: pd.DataFrame,
    words: tuple[str, Sequence[str]],
    columns: Sequence[Metric],
) -> Table:
    """The table of a long frame: a line for every cell.

    frame: of `measure`, with the paper's figures filled in. words: the caption and the notes.
    columns: the metrics; one for which the paper has figures is followed by them.
    """
    keys = (*SETTING, *results.more, "tree", "method")
    cells = results.cells[~results.cells.is_audit].assign(method="")
    varying, fixed = split_keys(cells, keys)
    caption, notes = words
    shown = display(frame, results.keys, varying, columns)
    return Table(stem, frame, shown, len(varying), caption + fixed, tuple(notes))


def definitions(columns: Sequence[Metric], results: Results) -> tuple[str, ...]:
    """The notes that say what the columns mean."""
    meant = ". ".join(f"{metric.label}: {metric.definition}" for metric in columns)
    return (f"{meant}.", BRACKETS, *([audits.DEFINITION] if results.cells.is_audit.any() else []))


def display(
    frame: pd.DataFrame, keys: Sequence[str], varying: Sequence[str], columns: Sequence[Metric]
) -> pd.DataFrame:
    """The printed table. A cell that is not done shows its status and reason in place of its first metric."""
    with_paper = set(frame.quantity[frame.paper_low.notna()])
    has_audits = bool((frame.verdict != "").any())
    lines = []
    for _, rows in frame.groupby(["cell_id", *keys], sort=False):
        first, by_quantity = rows.iloc[0], rows.set_index("quantity")
        line = key_texts(first, varying)
        for metric in columns:
            found = by_quantity.loc[metric.name]
            line.append(labels.interval(Interval(found.value, found.lower, found.upper), metric.spec))
            if metric.name in with_paper:
                line.append(labels.between(found.paper_low, found.paper_high, metric.paper_spec))
        if has_audits:
            audit = by_quantity.value[list(audits.QUANTITIES)].to_dict() | {"verdict": first.verdict}
            line.append(audits.text(audit) or labels.ABSENT)
        if first.status != "done":
            line[len(varying)] = labels.gap(first)
        lines.append(line)
    header = [labels.header(key) for key in varying]
    for metric in columns:
        header += [metric.label] + ["(paper)"] * (metric.name in with_paper)
    return pd.DataFrame(lines, columns=header + ["Audit"] * has_audits)
