"""Tables in the paper's wide layout: a line a setting, and the verifiers that it compares side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis import audits, labels
from analysis.metrics import Metric
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


def lines(frame: pd.DataFrame, keys: Sequence[str], columns: Sequence[Column]) -> pd.DataFrame:
    """The printed table of a long frame, without the keys' own columns: one line for each of their values.

    A metric for which the paper has figures is followed by them. A cell that is not done shows its status in
    place of its first metric. The last columns are the verdicts of the verifiers' audits, where there are
    any.
    The index is that of the keys.
    """
    with_figures = {
        (row.verifier, row.quantity) for row in frame[frame.paper_low.notna()].itertuples(index=False)
    }
    audited = [verifier for verifier in _verifiers(columns) if _verdicts(frame, verifier)]
    shown = {}
    for values, rows in frame.groupby(list(keys), sort=False):
        by_quantity = rows.set_index(["verifier", "quantity"])
        line: dict[str, str] = {}
        for column in columns:
            place = (column.verifier, column.metric.name)
            found = by_quantity.loc[place] if place in by_quantity.index else None
            line[column.header] = _own(found, column, columns)
            if place in with_figures:
                line[f"{column.header} (paper)"] = _figure(found, column.metric)
        for verifier in audited:
            line[f"Audit of {labels.name('verifier', verifier)}"] = _audit(by_quantity, verifier)
        shown[values] = line
    index = pd.MultiIndex.from_tuples(list(shown), names=list(keys))
    return pd.DataFrame(list(shown.values()), index=index)


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
