"""The figure of a sweep: a bar for each cell that decoded."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis import figures, labels, long
from analysis.cells import FIRST
from analysis.load import LABELS, SETTING
from analysis.metrics import ACCEPTED_LENGTH
from analysis.table import Number
from resispec.audit.verdict import Finding

MOST_BARS = 40
"""The largest number of bars; the table has all cells."""
BOUNDS = [ACCEPTED_LENGTH.name + bound for bound in ("", "_lower", "_upper")]


def draw(frame: pd.DataFrame) -> Figure | None:
    """The accepted lengths of a sweep's first MOST_BARS cells, with intervals,
    those of biased rules hatched; None if no cell decoded.

    frame: that of the sweep's table, or of its CSV.
    """
    if ACCEPTED_LENGTH.name not in frame or frame[ACCEPTED_LENGTH.name].isna().all():
        return None
    more = list(frame)[len(FIRST) : list(frame).index("status")]
    rows = frame[frame[ACCEPTED_LENGTH.name].notna()]
    rows = rows.assign(**{key: rows[key].fillna("") for key in (*LABELS, *more, "verdict")})
    names, fixed = long.split_keys(rows, (*SETTING, *more, "tree", "method"))
    shown = rows[:MOST_BARS]
    lines = shown.to_dict("records")
    is_biased = [_is_biased(line) for line in lines]
    texts = [str(Number(line[ACCEPTED_LENGTH.name])) for line in lines]
    texts = [
        f"{text}, biased" if biased else text for text, biased in zip(texts, is_biased, strict=True)
    ]
    figure = Figure(figsize=(7.2, 1.0 + 0.3 * len(lines)), layout="constrained")
    axes = figure.subplots()
    values = shown[BOUNDS].set_axis(["value", "lower", "upper"], axis=1)
    figures.bars(axes, values, texts, is_biased)
    axes.set_yticks(range(len(lines)), [_name(line, names) for line in lines])
    axes.set_xlabel(f"tokens a step.{fixed}", fontsize=figures.SIZE + 0.5)
    return figure


def _name(line: Mapping[str, Any], keys: Iterable[str]) -> str:
    """A cell by what tells it apart: "T = 1, Python code, SpecInfer + ResiSpec"."""
    values = {key: line[key] for key in keys if key != "method" and line[key] != ""}
    method = labels.method(line["decoder"], line["verifier"])
    return ", ".join(filter(None, (labels.setting(values), method)))


def _is_biased(line: Mapping[str, Any]) -> bool:
    return str(line["verdict"]).startswith(Finding.BIASED)
