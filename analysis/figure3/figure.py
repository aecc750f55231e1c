"""Figure 3's picture: a step's time as stacked bars, and beside each of them the parts of its shaping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis import figures, labels

Parts = Mapping[str, tuple[str, str]]
"""Name -> what is printed, and the colour."""


def tint(colour: str, white: float) -> str:
    """A colour with so much white in it, from 0 to 1."""
    return mpl.colors.to_hex([1 - (1 - channel) * (1 - white) for channel in mpl.colors.to_rgb(colour)])


STEP: Parts = {
    "draft": ("Drafting", figures.SKY),
    "target": ("Target forward", figures.BLUE),
    "verification": ("Verification, the rest", figures.ORANGE),
    "shaping": ("Shaping", figures.VERMILION),
    "other": ("Other", tint(figures.GREY, 0.6)),
}
"""The parts of a step. Neighbours differ in lightness."""
SHAPING: Parts = {
    "budget": ("Budget", tint(figures.VERMILION, 0.0)),
    "redistribution": ("Redistribution", tint(figures.VERMILION, 0.4)),
    "proxy": ("Proxy formulation", tint(figures.VERMILION, 0.7)),
    "between": ("Between them", tint(figures.GREY, 0.6)),
}
"""The parts of shaping, in shades of its colour."""
LEFT, RIGHT = "ms a step, in profiling runs (whiskers: 95 % interval of the step)", "% of ResiSpec's shaping"
ROOM = 0.055
"""A part that is narrower than this share of its panel has no number."""


def draw(frame: pd.DataFrame, named: Sequence[str]) -> Figure:
    """Both panels, with a row for every cell.

    frame: of `analysis.figure3.table.measure`. named: the keys that tell rows apart beside decoder and
    verifier.
    """
    cells = [rows for _, rows in frame.groupby(["cell_id", "decoder", *named, "verifier"], sort=False)]
    figure = Figure(figsize=(9.8, 1.3 + 0.5 * len(cells)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2.4, 1))
    steps = frame[(frame.part == "step") & (frame.quantity == "ms_per_step")]
    left.set_xlim(0, 1.4 * max([*steps.value, *steps.upper.dropna()], default=1))
    right.set_xlim(0, 100)
    places, title, place = [], "", 0.0
    for rows in cells:
        first = rows.iloc[0]
        own = ", ".join(labels.text(key, first[key]) for key in ("decoder", *reversed(named)))
        place += 1.9 if own != title else 1
        if own != title:
            left.text(0, place - 0.5, own, fontsize=figures.SIZE, fontweight="bold", va="bottom")
        title = own
        places.append((place, labels.name("verifier", first.verifier)))
        _row(left, right, place, rows)
    left.set_yticks([place for place, _ in places], [name for _, name in places])
    left.set_ylim(place + 0.6, 0.7)
    for axes, parts, measure in ((left, STEP, LEFT), (right, SHAPING, RIGHT)):
        axes.set_xlabel(measure, fontsize=figures.SIZE)
        _legend(axes, parts, columns=len(parts) if axes is left else 2)
    return figure


def _row(left: Axes, right: Axes, place: float, rows: pd.DataFrame) -> None:
    """One cell's bars, or why there are none."""
    first = rows.iloc[0]
    if first.status != "done":
        left.text(0, place, f" {first.status}", fontsize=figures.SIZE, va="center", color=figures.GREY)
        return
    found = {quantity: own.set_index("part") for quantity, own in rows.groupby("quantity")}
    spent = found["ms_per_step"]
    _stack(left, place, {part: (spent.value[part], f"{spent.value[part]:.1f}") for part in STEP}, STEP)
    whole = spent.loc["step"]
    if whole.notna().all():
        spread = [[whole.value - whole.lower], [whole.upper - whole.value]]
        left.errorbar(whole.value, place, xerr=spread, color=figures.BLACK, capsize=2.5, elinewidth=0.9)
    said = f"{whole.value:.1f} ms, shaping {found['percent_of_step'].value['shaping']:.1f} %"
    end = whole.value if pd.isna(whole.upper) else whole.upper
    left.annotate(said, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=figures.SIZE)
    if "percent_of_shaping" in found:
        percent = found["percent_of_shaping"].value
        _stack(right, place, {part: (percent[part], f"{percent[part]:.0f} %") for part in SHAPING}, SHAPING)
    else:
        right.text(2, place, "not split", fontsize=figures.SIZE, va="center", color=figures.GREY)


def _stack(axes: Axes, place: float, widths: Mapping[str, tuple[float, str]], parts: Parts) -> None:
    """Parts one after another. widths: name -> its length and its text, which is written where it fits."""
    start, room = 0.0, ROOM * axes.get_xlim()[1]
    for part, (width, text) in widths.items():
        colour = parts[part][1]
        axes.barh(place, width, 0.72, start, color=colour, edgecolor="white", linewidth=0.6)
        if width >= room:
            style = {"ha": "center", "va": "center", "fontsize": figures.SIZE - 0.5}
            ink = "white" if colour == figures.BLUE else "black"
            axes.text(start + width / 2, place, text, color=ink, **style)
        start += width


def _legend(axes: Axes, parts: Parts, columns: int) -> None:
    handles = [Patch(facecolor=colour, label=label) for label, colour in parts.values()]
    spot = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.2, "frameon": False}
    spacing = {"handlelength": 1.0, "columnspacing": 1.0, "handletextpad": 0.4}
    axes.legend(handles=handles, ncols=columns, fontsize=figures.SIZE, **spot, **spacing)
    figures.finish(axes)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
