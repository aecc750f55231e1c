"""The figure of a sweep: a bar for each cell that decoded."""

from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis import audits, figures, labels, long
from analysis.cells import FIRST
from analysis.load import LABELS, SETTING
from analysis.metrics import ACCEPTED_LENGTH
from analysis.table import Number

MOST_BARS = 40
"""The largest number of bars; the table has all cells."""
BOUNDS = [ACCEPTED_LENGTH.name + bound for bound in ("", "_lower", "_upper")]


def draw(frame: pd.DataFrame) -> Figure | None:
    """The accepted lengths of a sweep's first MOST_BARS cells; None if no cell decoded.

    They have intervals; those of biased rules are hatched, of unaudited ones grey. frame: that of
    the sweep's table, or of its CSV.
    """
    if ACCEPTED_LENGTH.name not in frame or frame[ACCEPTED_LENGTH.name].isna().all():
        return None
    more = list(frame)[len(FIRST) : list(frame).index("status")]
    rows = frame[frame[ACCEPTED_LENGTH.name].notna()]
    rows = rows.assign(**{key: rows[key].fillna("") for key in (*LABELS, *more, "verdict")})
    tasks = ["task"] if rows.task.nunique() > 1 else []
    names, fixed = long.split_keys(rows, (*SETTING, *tasks, *more, "tree", "method"))
    shown = rows[:MOST_BARS]
    lines = shown.to_dict("records")
    verdicts = [str(line["verdict"]) for line in lines]
    texts = [str(Number(line[ACCEPTED_LENGTH.name])) for line in lines]
    texts = [
        f"{text}, biased" if audits.is_biased(verdict) else text
        for text, verdict in zip(texts, verdicts, strict=True)
    ]
    figure = Figure(figsize=(7.2, 1.0 + 0.3 * len(lines)), layout="constrained")
    axes = figure.subplots()
    values = shown[BOUNDS].set_axis(["value", "lower", "upper"], axis=1)
    figures.bars(axes, values, texts, verdicts)
    ticks = [_name(line, names, is_short=True) for line in lines]
    if len(set(ticks)) < len(ticks):  # as of rules in two files of one name
        ticks = [_name(line, names, is_short=False) for line in lines]
    axes.set_yticks(range(len(lines)), ticks)
    axes.set_xlabel("tokens a step", fontsize=figures.SIZE + 0.5)
    title = wrap(fixed.strip(), 90)
    if len(shown) < len(rows):
        title.append(f"the first {len(shown)} of {len(rows)} cells; the table has all")
    figure.suptitle("\n".join(title), fontsize=figures.SIZE)
    return figure


def _name(line: Mapping[str, Any], keys: Iterable[str], is_short: bool) -> str:
    """A cell by what tells it apart: "T = 1, Python code, SpecInfer + ResiSpec".

    is_short: whether verifiers have short names.
    """
    values = {key: line[key] for key in keys if key != "method" and line[key] != ""}
    method = labels.method(line["decoder"], line["verifier"], is_short)
    return ", ".join(filter(None, (labels.setting(values), method)))
