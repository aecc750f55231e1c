"""The looks of figures in colour and grey: palette, markers,
names at the ends of lines; and their files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from analysis.long import CEILING
from resispec.files import replacing

# Okabe and Ito's colours, which colour-blind people tell apart (https://jfly.uni-koeln.de/color/).
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7A7A7A"


@dataclass(frozen=True)
class Look:
    """The looks of a line: colour, marker and dashes; lines of one figure can be told apart
    in grey, too.
    """

    colour: str
    marker: str
    line: str = "-"


LOOKS = {
    "standard": Look(BLACK, "o"),
    "resispec": Look(VERMILION, "X", "--"),
    "optimal": Look(BLUE, "D", "-."),
    "traversal_optimal": Look(GREEN, "s"),
    "traversal": Look(PURPLE, "v", "--"),
    "naive": Look(ORANGE, "P", "-."),
    CEILING: Look(GREY, "^", ":"),
}
OTHERS = (
    Look(SKY, "<", "-"),
    Look(ORANGE, ">", "--"),
    Look(PURPLE, "p", "-."),
    Look(BLUE, "h", ":"),
)
SIZE = 8.5
"""Basic size of text, in points."""


def looks(verifiers: Sequence[str]) -> dict[str, Look]:
    """The looks of each verifier; verifiers that LOOKS does not have take those
    of OTHERS in turn.
    """
    unknown = [name for name in dict.fromkeys(verifiers) if name not in LOOKS]
    return LOOKS | {name: OTHERS[place % len(OTHERS)] for place, name in enumerate(unknown)}


def line(axes: Axes, x: Sequence[float], rows: pd.DataFrame, look: Look, label: str = "") -> None:
    """Draw values with intervals.

    rows: value, lower, upper (NaN without an interval), one row per x.
    """
    sides = (rows.value - rows.lower, rows.upper - rows.value)
    errors = [side.clip(lower=0).fillna(0).to_numpy() for side in sides]
    style = {"color": look.colour, "marker": look.marker, "linestyle": look.line, "label": label}
    size = {"*": 9.5, "X": 6.5, "P": 6.5}.get(look.marker, 5)
    sizes = {"markersize": size, "linewidth": 1.3, "elinewidth": 0.9, "capsize": 1.5}
    edges = {"markeredgecolor": "white", "markeredgewidth": 0.3}
    axes.errorbar(list(x), rows.value.to_numpy(), yerr=errors, **style, **sizes, **edges)


def bars(axes: Axes, values: pd.DataFrame, texts: Sequence[str], is_biased: Sequence[bool]) -> None:
    """Draw horizontal bars from above, each with its text behind it; those of biased rules have
    a colour of their own and are hatched.

    values: value, lower, upper (NaN without an interval), one row a bar.
    """
    for place, (row, text, biased) in enumerate(
        zip(values.itertuples(), texts, is_biased, strict=True)
    ):
        colour = VERMILION if biased else GREEN
        fill = {"hatch": "///", "facecolor": "white"} if biased else {"facecolor": colour}
        axes.barh(place, row.value, 0.62, edgecolor=colour, **fill)
        if row.lower < row.upper:
            axes.hlines(place, row.lower, row.upper, colors="black", linewidth=1)
        end = row.upper if row.upper > row.value else row.value
        spot = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        axes.annotate(text, (end, place), **spot, fontsize=SIZE, bbox=paper)
    axes.set_ylim(len(texts) - 0.5, -0.5)
    axes.set_xlim(0, 1.32 * max([1.0, *values[["value", "upper"]].stack()]))
    finish(axes)
    axes.grid(visible=False)


def finish(axes: Axes) -> None:
    """Give a panel the frame, grid and tick labels that all panels have."""
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SIZE - 0.5)


def legend_above(figure: Figure, handles: Sequence[Any], title: str) -> None:
    """Put a legend above the panels.

    title: the figure's, since the layout has no room for both apart.
    """
    place = {"loc": "outside upper center", "ncols": len(handles) or 1, "frameon": False}
    figure.legend(
        handles=handles, **place, fontsize=SIZE + 0.5, title=title, title_fontsize=SIZE + 2
    )


def label_ends(
    axes: Axes, ends: Sequence[tuple[float, float, str, str]], gap: float, **arrow: Any
) -> None:
    """Write the names of lines at the right of a panel, without overlaps,
    with a thin leader to each end.

    ends: (x, y, name, colour). gap: the height of a line of text, in data units of y. arrow:
    further properties of the leaders.
    """
    ends = sorted(ends, key=lambda end: end[1])
    heights = [gap * len(end[2].splitlines()) for end in ends]
    places = spread([end[1] for end in ends], heights)
    for (x, y, name, colour), place in zip(ends, places, strict=True):
        leader = {
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.6,
            "shrinkA": 1,
            "shrinkB": 4,
        } | arrow
        spot = {
            "xytext": (1.05, place),
            "textcoords": axes.get_yaxis_transform(),
            "arrowprops": leader,
        }
        align = {"ha": "left", "va": "center", "annotation_clip": False}
        # Light colours are hard to read as text.
        ink = tuple(0.7 * part for part in mpl.colors.to_rgb(colour))
        axes.annotate(name, (x, y), **spot, **align, color=ink, fontsize=SIZE)


def spread(wanted: Sequence[float], heights: Sequence[float]) -> np.ndarray:
    """Centres as near as possible to the wanted ones, which are sorted,
    in their order and without overlaps.

    The method is least squares under an order: neighbours that would overlap move together.
    """
    if not len(wanted):
        return np.empty(0)
    offsets = np.cumsum(heights) - np.asarray(heights) / 2
    return isotonic_regression(np.asarray(wanted, np.float64) - offsets).x + offsets


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem.png` and `stem.pdf`, atomically and without dates, and return their paths."""
    mpl.rcParams["pdf.fonttype"] = 42  # text stays text
    paths = []
    for suffix, metadata in (
        ("png", {"Software": None}),
        ("pdf", {"CreationDate": None, "Producer": None}),
    ):
        paths.append(stem.with_name(f"{stem.name}.{suffix}"))
        with replacing(paths[-1]) as partial:
            figure.savefig(partial, format=suffix, dpi=200, metadata=metadata)
    return paths
