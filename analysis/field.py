"""Field: the exact verifiers of the literature and ours, side by side at as many verified positions."""

from __future__ import annotations

import sys

import pandas as pd
from matplotlib.figure import Figure

from analysis import figures, labels, metrics
from analysis.artefact import Artefact, command, footer, texts
from analysis.load import Plan, load
from analysis.metric_table import by_cell, definitions, measure, specinfer_on_d5b3
from analysis.table import Picture
from resispec.audit.verdict import Finding

TEXTS = texts("field")
COLUMNS = (metrics.ACCEPTED_LENGTH, metrics.GAIN, metrics.TOKENS_PER_S, metrics.SPEEDUP)
METHOD = ["decoder", "verifier", "tree"]


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells, and the figure of their gains."""
    results = load(plan, metrics.fields())
    frame = measure(results, specinfer_on_d5b3)
    picture = Picture(TEXTS["picture"], "field.png")
    notes = footer(results, plan, TEXTS["about"], definitions(COLUMNS, results), picture)
    caption = TEXTS["caption"].format(profile=plan.profile)
    return Artefact((by_cell("field", results, frame, caption, notes, COLUMNS),), {"field": draw(frame)})


def draw(frame: pd.DataFrame) -> Figure:
    """A panel for every temperature, a bar for every method, the longest on top. frame: the table's."""
    gains = frame[frame.quantity.eq(metrics.GAIN.name) & frame.value.notna()]
    methods = list(gains.groupby(METHOD, sort=False).value.mean().sort_values().index)
    names = [labels.method_on_tree(*method) for method in methods]
    panels = list(gains.groupby("temperature", sort=False))
    figure = Figure(figsize=(3.4 + 2.6 * len(panels), 0.9 + 0.27 * len(methods)), layout="constrained")
    grid = figure.subplots(1, max(1, len(panels)), sharey=True, squeeze=False)
    for axes, (temperature, group) in zip(grid.flat, panels, strict=False):
        found = group.groupby(METHOD, sort=False).value.agg(["mean", "min", "max"]).reindex(methods)
        spread = [found["mean"] - found["min"], found["max"] - found["mean"]]
        bars = axes.barh(names, found["mean"], xerr=spread, color="0.45")
        biased = group[group.verdict == Finding.BIASED].set_index(METHOD).index
        for bar, method in zip(bars, methods, strict=True):
            if method in biased:
                bar.set(facecolor="0.9", edgecolor="0.45", hatch="///")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_title(f"T = {temperature:g}", fontsize=figures.SIZE)
        axes.tick_params(labelsize=figures.SIZE)
    figure.supxlabel(
        "accepted length over that of SpecInfer's standard rule on d5b3 (hatched: biased)",
        fontsize=figures.SIZE,
    )
    return figure


main = command("field", make)


if __name__ == "__main__":
    sys.exit(main())
