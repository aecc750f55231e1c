"""Looks of figures in colour and grey: palette, markers, names at lines' ends; and their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy.optimize import isotonic_regression

from analysis import audits
from analysis.long import CEILING
from resispec.audit.verdict import Finding
from resispec.files import replacing

# Okabe and Ito's colours, which colour-blind people tell apart (https://jfly.uni-koeln.de/color/).
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7A7A7A"


@dataclass(frozen=True)
class Look:
    """Colour, marker and dashes of a line; lines of one figure can be told apart in grey, too."""

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
SIZES = (8.0, 9.0)
"""The smallest and the largest text of a figure whose width is given, in points."""
_LETTER, _BOLD = 0.56, 0.66
"""The mean width of a letter over its size, and that of a bold letter."""


def looks(verifiers: Sequence[str]) -> dict[str, Look]:
    """The looks of each verifier; those that LOOKS does not have take those of OTHERS in turn."""
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


def bars(axes: Axes, values: pd.DataFrame, texts: Sequence[str], verdicts: Sequence[str]) -> None:
    """Draw horizontal bars from above, each with its text behind it.

    Biased bars are hatched, those without a bias seen green, those without a decided audit grey.

    values: value, lower, upper (NaN without an interval), one row a bar.
    """
    for place, (row, text, verdict) in enumerate(
        zip(values.itertuples(), texts, verdicts, strict=True)
    ):
        colour = GREEN if verdict == Finding.NO_BIAS_SEEN else GREY
        fill = {"facecolor": colour}
        if audits.is_biased(verdict):
            colour = VERMILION
            fill = {"facecolor": "white", "hatch": "///"}
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
    names = [handle.get_label() for handle in handles]
    columns = legend_columns(names, figure.get_figwidth())
    place = {"loc": "outside upper center", "ncols": columns, "frameon": False}
    figure.legend(
        handles=handles, **place, fontsize=SIZE + 0.5, title=title, title_fontsize=SIZE + 2
    )


def legend_columns(names: Sequence[str], width: float) -> int:
    """The count of columns of a legend in a width in inches: all names, or as many as fit."""
    widths = [(_LETTER * SIZE * len(name) + 40) / 72 for name in names]
    if sum(widths) <= width:
        return len(names) or 1
    return max(1, int(width / max(widths)))


def wrapped(text: str, width: float, letter: float = _LETTER) -> str:
    """A text in lines that fit a width in inches, with the breaks that it has.

    letter: the mean width of a letter over its size.
    """
    count = max(8, int(72 * width / (letter * SIZE)))
    for whole in (" = ", " %"):  # never broken
        text = text.replace(whole, whole.replace(" ", "\N{NO-BREAK SPACE}"))
    lines = [line for part in text.split("\n") for line in wrap(part, count) or [""]]
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def fit(figure: Figure) -> Figure:
    """Give all text of a figure one of SIZES, and break titles and labels that are too long."""
    texts = figure.findobj(Text)
    for text in texts:
        text.set_fontsize(float(np.clip(text.get_fontsize(), *SIZES)))
    width, height = figure.get_size_inches()
    for legend in figure.legends:
        title = legend.get_title()
        title.set_text(wrapped(title.get_text(), width))
    for part in (figure, *figure.subfigs):
        for name, room in (("suptitle", width), ("supxlabel", width), ("supylabel", height)):
            text = getattr(part, f"_{name}", None)
            if text is not None:
                letter = _BOLD if text.get_fontweight() == "bold" else _LETTER
                text.set_text(wrapped(text.get_text(), 0.95 * room, letter))
    figure.draw_without_rendering()  # else the axes have no size
    for axes in figure.findobj(Axes):
        box = axes.get_window_extent()
        across, along = box.width / figure.dpi, box.height / figure.dpi
        for text in (axes.title, axes._left_title, axes._right_title, axes.xaxis.label):
            text.set_text(wrapped(text.get_text(), 1.05 * across))
        axes.yaxis.label.set_text(wrapped(axes.yaxis.label.get_text(), 1.05 * along))
    return figure


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]], lines: int) -> None:
    """Write the names of lines right of a panel, without overlaps, with a thin leader to each end.

    ends: (x, y, name, colour). lines: of text that fit beside the panel.
    """
    bottom, top = axes.get_ylim()
    gap = (top - bottom) / lines
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
        }
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
    """Centres as near as possible to the sorted wanted ones, in their order, without overlaps.

    The method is least squares under an order: neighbours that would overlap move together.
    """
    if not len(wanted):
        return np.empty(0)
    offsets = np.cumsum(heights) - np.asarray(heights) / 2
    return isotonic_regression(np.asarray(wanted, np.float64) - offsets).x + offsets


def save_figure(figure: Figure, stem: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write `stem.png`, `stem.pdf` and so on, atomically and without dates; return their paths.

    formats: some of png, svg and pdf. A user's matplotlibrc may set what is not set here, such as
    fonts, and `savefig.dpi`.
    """
    metadata = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None, "Producer": None},
        "svg": {"Date": None, "Creator": None},
    }
    settings: dict[str, Any] = {"pdf.fonttype": 42, "svg.fonttype": "none"}  # text stays text
    settings["svg.hashsalt"] = stem.name
    if mpl.rcParams["savefig.dpi"] == mpl.rcParamsDefault["savefig.dpi"]:
        settings["savefig.dpi"] = 200
    paths = []
    with mpl.rc_context(settings):
        for suffix in formats:
            paths.append(stem.with_name(f"{stem.name}.{suffix}"))
            with replacing(paths[-1]) as partial:
                figure.savefig(partial, format=suffix, metadata=metadata[suffix])
    return paths
