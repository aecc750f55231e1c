"""The frontier's figure: accepted length against temperature, and against verified positions."""

from __future__ import annotations

import re

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures, labels
from analysis.figures import GREEN, ORANGE, PURPLE, Look

REFERENCE_TREE = "d5b3"
BEST = "best_121"
VERIFIERS = ("standard", "optimal", "traversal_optimal", "resispec")
"""Those that are drawn on the reference tree."""
# decoder -> the name and the looks of the line of its searched trees; the first one's draws are those of d5b3
SEARCHED = {
    "specinfer": ("best trees: traversal,\noptimal weights", Look(GREEN, "*", "--")),
    "sequoia": ("best trees: traversal,\nwithout replacement", Look(ORANGE, "v", "-.")),
    "top_k": ("best trees: top-k", Look(PURPLE, "P", ":")),
}


def positions(tree: str) -> int | None:
    """The verified positions of a tree that its name says: "best_64" and "growmap_64" have 64, "d5b3" 121."""
    if found := re.fullmatch(r"d(\d+)b(\d+)", tree):
        levels, branching = map(int, found.groups())
        return sum(branching**level for level in range(levels))
    found = re.fullmatch(r"(?:best|growmap)_(\d+)", tree)
    return int(found[1]) if found else None


def message(frame: pd.DataFrame) -> str:
    """What the figure shows, in a sentence: the highest gain of a row whose audit is exact, and ResiSpec's.

    frame: rows of one data set and temperature, long.
    """
    gains = frame[(frame.quantity == "accepted_length_gain") & frame.value.notna()]
    exact = gains[gains.verdict == "exact"]
    if exact.empty:
        return "Accepted length of exact verification, and of ResiSpec"
    best = exact.loc[exact.value.idxmax()]
    size = positions(best.tree)
    where = f"at {size} positions" if size else f"on {labels.name('tree', best.tree)}"
    is_biased = (gains[gains.verifier == "resispec"].verdict == "biased").any()
    said = f"Exact verification reaches {best.value:.1f}× SpecInfer's accepted length {where}"
    return said + ("; ResiSpec's gain is bias" if is_biased else "")


def draw(frame: pd.DataFrame) -> Figure:
    """Two panels, of the data set that was measured at the most temperatures. frame: the frontier's, long."""
    measured = frame[frame.decoder.isin(list(SEARCHED)) & frame.value.notna()]
    dataset = measured.groupby("dataset", sort=False).temperature.nunique().idxmax() if len(measured) else ""
    own = measured[measured.dataset == dataset]
    hottest = own.temperature.max()
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    lengths = own[own.quantity.isin(["accepted_length", "ceiling"])]
    top = lengths[["value", "upper"]].max().max() + 0.2 if len(lengths) else 2.0
    left.set_ylim(1, top)
    _against_temperature(left, own, gap=(top - 1) / 19)
    _against_size(right, own[own.temperature == hottest], gap=(top - 1) / 19)
    named = labels.name("dataset", dataset)
    left.set_title(f"{named}, 121 positions", fontsize=figures.SIZE + 0.5)
    right.set_title(f"{named}, T = {hottest:g}", fontsize=figures.SIZE + 0.5)
    left.set_ylabel("accepted length, tokens a step", fontsize=figures.SIZE + 0.5)
    figure.suptitle(message(own[own.temperature == hottest]), fontsize=figures.SIZE + 3)
    return figure


def _against_temperature(axes: Axes, frame: pd.DataFrame, gap: float) -> None:
    """Every verifier on d5b3, the best tree of as many positions, and d5b3's ceiling."""
    lines = _on_reference(frame)
    name, look = SEARCHED["specinfer"]
    best = frame[(frame.tree == BEST) & (frame.decoder == "specinfer")]
    lines.append((name.replace("trees", "tree"), look, best[best.quantity == "accepted_length"]))
    ceiling = frame[(frame.tree == REFERENCE_TREE) & (frame.quantity == "ceiling")]
    lines.append(("d5b3: ceiling", figures.LOOKS[figures.CEILING], ceiling[ceiling.verifier == "standard"]))
    _draw(axes, [(name, look, rows.assign(x=rows.temperature)) for name, look, rows in lines], gap)
    axes.set_xlabel("temperature", fontsize=figures.SIZE + 0.5)


def _against_size(axes: Axes, frame: pd.DataFrame, gap: float) -> None:
    """The best trees of every kind of draws, their ceiling, and beside them the verifiers on d5b3."""
    sized = frame[frame.tree.str.startswith("best_")]
    lines = [
        (name, look, sized[(sized.decoder == decoder) & (sized.quantity == "accepted_length")])
        for decoder, (name, look) in SEARCHED.items()
    ]
    lines.append(("best trees: ceiling", figures.LOOKS[figures.CEILING], sized[sized.quantity == "ceiling"]))
    lines += _on_reference(frame)
    _draw(axes, [(name, look, rows.assign(x=rows.tree.map(positions))) for name, look, rows in lines], gap)
    axes.set_xlabel("verified positions", fontsize=figures.SIZE + 0.5)


def _on_reference(frame: pd.DataFrame) -> list[tuple[str, Look, pd.DataFrame]]:
    rows = frame[(frame.tree == REFERENCE_TREE) & (frame.quantity == "accepted_length")]
    return [
        (_name(verifier), figures.LOOKS[verifier], rows[rows.verifier == verifier]) for verifier in VERIFIERS
    ]


def _name(verifier: str) -> str:
    biased = " (biased)" if verifier == "resispec" else ""
    return f"{REFERENCE_TREE}: {labels.name('verifier', verifier)}{biased}"


def _draw(axes: Axes, lines: list[tuple[str, Look, pd.DataFrame]], gap: float) -> None:
    """Lines with their names at their right ends. Their rows have an `x`; a line without rows is left out."""
    ends = []
    for name, look, rows in lines:
        rows = rows[rows.value.notna() & rows.x.notna()].sort_values("x")
        if len(rows):
            figures.line(axes, rows.x, rows, look)
            ends.append((float(rows.x.iloc[-1]), float(rows.value.iloc[-1]), name, look.colour))
    figures.label_ends(axes, ends, gap)
    axes.set_xticks(sorted({x for _, _, rows in lines for x in rows.x.dropna()}))
    figures.finish(axes)
