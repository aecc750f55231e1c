"""The frontier's figure: accepted length against temperature on d5b3, and against the number of verified positions."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import labels

# verifier -> marker, line style, grey: told apart without the other two, and the reverse
STYLES = {
    "standard": ("o", "-", "0.0"),
    "optimal": ("D", "-.", "0.3"),
    "traversal_optimal": ("s", "--", "0.15"),
    "resispec": ("x", ":", "0.55"),
}
SIZES = {"best_16": 16, "best_64": 64, "best_121": 121}
CEILING, CEILING_STYLE = "ceiling of exact verifiers, i.i.d. draws", ("^", "none", "0.7")
# decoder -> the line of its searched trees; the first one's draws are those of d5b3
BEST = {
    "specinfer": ("traversal, optimal weights, on its best trees", ("*", "--", "0.15")),
    "sequoia": ("without replacement: traversal on its best trees", ("v", ":", "0.35")),
    "top_k": ("top-k: its best trees", ("P", "-.", "0.55")),
}


def draw(frame: pd.DataFrame) -> Figure:
    """Two panels, of the data set that was measured at the most temperatures. frame: the frontier's, long."""
    measured = frame[frame.decoder.isin(list(BEST)) & frame.value.notna()]
    dataset = measured.groupby("dataset", sort=False).temperature.nunique().idxmax() if len(measured) else ""
    own = measured[measured.dataset == dataset]
    figure = Figure(figsize=(8.2, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _against_temperature(left, own)
    hottest = own.temperature.max()
    _against_size(right, own[own.temperature == hottest])
    named = labels.name("dataset", dataset)
    left.set_title(f"{named}, 121 verified positions", fontsize=9)
    right.set_title(f"{named}, T = {hottest:g}", fontsize=9)
    left.set_ylim(
        1, own.upper[own.quantity.isin(["accepted_length", "ceiling"])].max() + 0.2 if len(own) else 2
    )
    handles = {
        handle.get_label(): handle for axes in (left, right) for handle in axes.get_legend_handles_labels()[0]
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=3, frameon=False, fontsize=8
    )
    left.set_ylabel("accepted length, tokens a step", fontsize=9)
    return figure


def _against_temperature(axes: Axes, frame: pd.DataFrame) -> None:
    d5b3 = frame[frame.tree == "d5b3"].sort_values("temperature")
    for verifier in STYLES:
        _line(
            axes,
            d5b3[(d5b3.verifier == verifier) & (d5b3.quantity == "accepted_length")],
            "temperature",
            _name(verifier),
        )
    best = frame[
        (frame.tree == "best_121") & (frame.decoder == "specinfer") & (frame.quantity == "accepted_length")
    ]
    _line(axes, best.sort_values("temperature"), "temperature", *BEST["specinfer"])
    ceiling = d5b3[(d5b3.quantity == "ceiling") & (d5b3.verifier == "standard")]
    _line(axes, ceiling, "temperature", CEILING, CEILING_STYLE)
    axes.set_xlabel("temperature (d5b3, unless on its best trees)", fontsize=9)
    _finish(axes)


def _against_size(axes: Axes, frame: pd.DataFrame) -> None:
    sized = frame[frame.tree.isin(list(SIZES))]
    sized = sized.assign(size=sized.tree.map(SIZES)).sort_values("size")
    for decoder, line in BEST.items():
        _line(axes, sized[(sized.decoder == decoder) & (sized.quantity == "accepted_length")], "size", *line)
    _line(axes, sized[sized.quantity == "ceiling"], "size", CEILING, CEILING_STYLE)
    d5b3 = frame[(frame.tree == "d5b3") & (frame.quantity == "accepted_length")].assign(
        size=SIZES["best_121"]
    )
    for verifier in STYLES:
        _line(axes, d5b3[d5b3.verifier == verifier], "size", _name(verifier))
    axes.set_xlabel("verified positions (the others: d5b3)", fontsize=9)
    _finish(axes)


def _name(verifier: str) -> str:
    return f"{labels.name('verifier', verifier)}{' (biased)' if verifier == 'resispec' else ''}"


def _line(
    axes: Axes, rows: pd.DataFrame, x: str, name: str, style: tuple[str, str, str] | None = None
) -> None:
    if rows.empty:
        return
    marker, line, grey = style or STYLES[rows.verifier.iloc[0]]
    below, above = rows.value - rows.lower, rows.upper - rows.value
    errors = [side.clip(lower=0).fillna(0) for side in (below, above)]
    looks = {"marker": marker, "linestyle": line, "color": grey, "markersize": 5, "linewidth": 1.2}
    axes.errorbar(rows[x], rows.value, yerr=errors, label=name, elinewidth=0.8, capsize=1.5, **looks)


def _finish(axes: Axes) -> None:
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
