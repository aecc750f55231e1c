"""Tables in the paper's wide layout: a line a setting, and the verifiers that it compares side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis import audits, labels, report
from analysis.load import Results
from analysis.metrics import Metric
from analysis.report import Table
from analysis.stats import Interval


@dataclass(frozen=True)
class Column:
    """One metric of one verifier. header: its own, without "(paper)" behind it."""

    verifier: str
    metric: Metric
    header: str


def with_paper(
    frame: pd.DataFrame, figure: Callable[[Mapping[str, Any]], tuple[float, float]]
) -> pd.DataFrame:
    """A long frame of `analysis.decoded.measure` with the paper's figures.

    figure: the lowest and the highest figure of the paper for a row, NaN where it has none.
    """
    ranges = [figure(row) for row in frame.to_dict("records")]
    return frame.assign(paper_low=[low for low, _ in ranges], paper_high=[high for _, high in ranges])


def table(
    stem: str,
    frame: pd.DataFrame,
    keys: Mapping[str, Callable[[Mapping[str, Any]], str]],
    columns: Sequence[Column],
    words: tuple[str, Sequence[str]],
) -> Table:
    """The table of a long frame: one line for every setting.

    A metric for which the paper has figures is followed by them. A cell that is not done shows its status in
    place of its first metric. The last columns are the verdicts of the verifiers' audits, where there are
    any. A note names methods whose verifier has no column.

    keys: header -> what it prints of a line's first row, whose values tell lines apart. words: the caption
    and the notes.
    """
    has_column = frame.verifier.isin(_verifiers(columns))
    own = frame[has_column]
    named = pd.DataFrame(
        [{header: text(row) for header, text in keys.items()} for row in own.to_dict("records")],
        columns=list(keys),
        index=own.index,
    )
    caption, notes = words
    notes = (*_left_out(frame[~has_column]), *notes)
    return Table(stem, frame, _lines(own, named, columns), len(keys), caption, notes)


def key(name: str) -> Callable[[Mapping[str, Any]], str]:
    """What prints a label."""
    return lambda row: labels.text(name, row[name])


def shown_cells(results: Results, columns: Sequence[Column]) -> pd.DataFrame:
    """The cells that have columns: no audits, and none of other verifiers."""
    return results.cells[~results.cells.is_audit & results.cells.verifier.isin(_verifiers(columns))]


def _lines(frame: pd.DataFrame, named: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """The printed table. named: what names the line of each row of the frame."""
    with_figures = {
        (row.verifier, row.quantity) for row in frame[frame.paper_low.notna()].itertuples(index=False)
    }
    audited = [verifier for verifier in _verifiers(columns) if _verdicts(frame, verifier)]
    lines = []
    for values, rows in frame.groupby([named[header] for header in named], sort=False):
        by_quantity = rows.set_index(["verifier", "quantity"])
        line = dict(zip(named, values, strict=True))
        for column in columns:
            place = (column.verifier, column.metric.name)
            found = by_quantity.loc[place] if place in by_quantity.index else None
            line[column.header] = _own(found, column, columns)
            if place in with_figures:
                line[f"{column.header} (paper)"] = _figure(found, column.metric)
        for verifier in audited:
            line[f"Audit of {labels.name('verifier', verifier)}"] = _audit(by_quantity, verifier)
        lines.append(line)
    return pd.DataFrame(lines, columns=None if lines else [*named, *(column.header for column in columns)])


def _left_out(rows: pd.DataFrame) -> tuple[str, ...]:
    """A note on the methods of rows that no column shows; none where there are no such rows."""
    methods = [labels.method(*pair) for pair in zip(rows.decoder, rows.verifier, strict=True)]
    return (f"Not in this table: {report.listed(methods)}; the CSV has them.",) if methods else ()


def _verifiers(columns: Sequence[Column]) -> list[str]:
    return list(dict.fromkeys(column.verifier for column in columns))


def _verdicts(frame: pd.DataFrame, verifier: str) -> bool:
    return bool((frame.verdict[frame.verifier == verifier] != "").any())


def _own(found: Any, column: Column, columns: Sequence[Column]) -> str:
    """Our number, or why there is none."""
    if found is None:
        return labels.ABSENT
    if found.status != "done":
        first = next(one for one in columns if one.verifier == column.verifier)
        return labels.gap(found) if column is first else labels.ABSENT
    return labels.interval(Interval(found.value, found.lower, found.upper), column.metric.spec)


def _figure(found: Any, metric: Metric) -> str:
    """The paper's number."""
    if found is None:
        return labels.ABSENT
    return labels.between(found.paper_low, found.paper_high, metric.paper_spec)


def _audit(by_quantity: pd.DataFrame, verifier: str) -> str:
    """The verdict on a verifier's output in one setting."""
    if verifier not in by_quantity.index.get_level_values("verifier"):
        return labels.ABSENT
    rows = by_quantity.loc[verifier]
    audit = rows.value[list(audits.QUANTITIES)].to_dict() | {"verdict": rows.verdict.iloc[0]}
    return audits.text(audit) or labels.ABSENT
