"""Field: the exact verifiers of the literature and ours, side by side at as many verified positions."""

from __future__ import annotations

import sys

import pandas as pd
from matplotlib.figure import Figure

from analysis import figures, labels, metrics
from analysis.artefact import Artefact, command, footer, texts
from analysis.load import Plan, load
from analysis.metric_table import by_cell, definitions, measure
from analysis.table import Picture

TEXTS = texts("field")
REFERENCE = {"decoder": "specinfer", "tree": "d5b3"}
COLUMNS = (metrics.ACCEPTED_LENGTH, metrics.GAIN, metrics.TOKENS_PER_S, metrics.SPEEDUP)
METHOD = ["decoder", "verifier", "tree"]


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells, and the figure of their gains."""
    results = load(plan, metrics.fields())
    frame = measure(results, lambda _: REFERENCE)
    picture = Picture(TEXTS["picture"], "field.png")
    notes = footer(results, plan, TEXTS["about"], definitions(COLUMNS, results), picture)
    caption = TEXTS["caption"].format(profile=plan.profile)
    return Artefact((by_cell("field", results, frame, caption, notes, COLUMNS),), {"field": draw(frame)})


def draw(frame: pd.DataFrame) -> Figure:
    """A panel for every temperature, a bar for every method, by rising gain. frame: the table's."""
    gains = frame[frame.quantity.eq(metrics.GAIN.name) & frame.value.notna()]
    panels = [group for _, group in gains.groupby("temperature", sort=False)]
    figure = Figure(figsize=(4.4 * max(1, len(panels)), 3.6), layout="constrained")
    for axes, group in zip(figure.subplots(1, max(1, len(panels)), squeeze=False).flat, panels, strict=False):
        bars = group.groupby(METHOD).value.agg(["mean", "min", "max"]).sort_values("mean").reset_index()
        names = [
            f"{labels.name('verifier', row.verifier)}, {labels.name('tree', row.tree)}"
            + ("" if row.decoder == "specinfer" else f" ({labels.name('decoder', row.decoder)})")
            for row in bars.itertuples()
        ]
        biased = bars.verifier.eq("resispec")
        spread = [bars["mean"] - bars["min"], bars["max"] - bars["mean"]]
        looks = {
            "color": ["0.8" if one else "0.35" for one in biased],
            "hatch": ["//" * one for one in biased],
        }
        axes.barh(names, bars["mean"], xerr=spread, **looks, error_kw={"linewidth": 0.8})
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_title(f"T = {group.temperature.iloc[0]:g}", fontsize=figures.SIZE)
        axes.tick_params(labelsize=figures.SIZE)
        axes.set_xlabel("accepted length over SpecInfer's (hatched: biased)", fontsize=figures.SIZE)
    return figure


main = command("field", make)


if __name__ == "__main__":
    sys.exit(main())
