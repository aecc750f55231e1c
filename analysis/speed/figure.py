"""The figure of speeds: tokens a second against verified positions, a panel for every setting."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures, labels
from analysis.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, Look
from analysis.speed.words import KINDS, SINGLE, kind_of

LINES = {
    "chain": Look(BLUE, "D", "-."),
    "iid": Look(GREEN, "s"),
    "without_replacement": Look(ORANGE, "v", "--"),
    "point_mass": Look(PURPLE, "P", ":"),
}
D5B3 = {
    "standard": Look(VERMILION, "o", ""),
    "traversal_optimal": Look(GREEN, "^", ""),
    "level_optimal": Look(BLUE, "<", ""),
}
LEVELS = {"one_token": (BLACK, "-"), "generate": (GREY, "--"), "assisted": (SKY, "-.")}
MOST_PANELS = 4


def draw(frame: pd.DataFrame) -> Figure:
    """frame: of `measured.measure`. Settings beyond MOST_PANELS are in the table only."""
    rates = frame[(frame.quantity == "tokens_per_s") & frame.value.notna()]
    settings = [own for _, own in rates.groupby("cell_id", sort=False)][:MOST_PANELS]
    figure = Figure(figsize=(2.7 + 4.2 * max(1, len(settings)), 4.2), layout="constrained")
    panels = figure.subplots(1, max(1, len(settings)), squeeze=False)[0]
    for axes, own in zip(panels, settings, strict=False):
        _panel(axes, own)
    panels[0].set_ylabel("tokens a second, the prompt included", fontsize=figures.SIZE + 0.5)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=figures.SIZE, frameon=False, loc="outside right upper")
    return figure


def _panel(axes: Axes, own: pd.DataFrame) -> None:
    kinds = own.entry.map(kind_of)
    for kind, look in LINES.items():
        rows = own[kinds == kind].sort_values("num_nodes")
        figures.line(axes, rows.num_nodes, rows, look, KINDS[kind])
    for verifier, rows in own[kinds == "d5b3"].groupby("verifier", sort=False):
        named = f"d5b3, {labels.name('verifier', verifier)}"
        figures.line(axes, rows.num_nodes, rows, D5B3[verifier], named)
    fastest = own[kinds == "fastest"]
    figures.line(axes, fastest.num_nodes, fastest, Look(VERMILION, "*", ""), SINGLE["fastest"])
    for entry, (colour, line) in LEVELS.items():
        for value in own.value[kinds == entry]:
            axes.axhline(value, color=colour, linestyle=line, linewidth=1.1, label=SINGLE[entry])
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64, 128], [str(2**power) for power in range(8)])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("verified positions", fontsize=figures.SIZE + 0.5)
    first = own.iloc[0]
    named = f"{labels.text('pair', first.pair)}, T = {first.temperature:g}"
    axes.set_title(named, fontsize=figures.SIZE + 0.5)
    figures.finish(axes)
