"""Field: exact verifiers of the literature and ours side by side, at as many verified positions."""

import math
from functools import partial
from itertools import cycle

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import audits, figures, labels, metrics, ranges
from analysis.artefact import Artefact, footer, run, texts
from analysis.ceilings import CEILING, is_bound, with_ceilings
from analysis.costs import (
    DRAFT_FORWARDS,
    GAIN_OVER_BEST,
    SHARE_OF_CEILING,
    STEP_MS,
    measure_with_costs,
    with_shares,
    with_values,
)
from analysis.frontier import BEST, SEARCHED, message
from analysis.load import Plan, load
from analysis.metric_table import by_cell, definitions, of_other_prompts

TEXTS = texts("field")
COLUMNS = (
    metrics.ACCEPTED_LENGTH,
    CEILING,
    metrics.GAIN,
    GAIN_OVER_BEST,
    DRAFT_FORWARDS,
    STEP_MS,
    metrics.TOKENS_PER_S,
    metrics.SPEEDUP,
)
OWN = "the tree that was searched for with it"
MARKS = {"d5b3": ("o", 22), "d7b2": ("v", 26), "chains_121": ("s", 22), OWN: ("*", 60)}
"""Name of a tree, or OWN -> its marker in the figure and the size of the marker."""
OTHER_MARKERS = "DPX^<>ph"
"""Markers of the trees of one's own sweeps, in turn."""


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells, its summary, and the figure of their gains."""
    results = load(plan.only(lambda cell: not is_bound(cell.part)), metrics.FIELDS)
    results.check_one_setting()
    frame = with_shares(with_ceilings(measure_with_costs(results, plan), plan))
    columns = with_values(frame, COLUMNS)
    about = (*TEXTS["about"], *of_other_prompts(frame, CEILING))
    notes = footer(results, plan, about, definitions(columns, results), TEXTS["picture"])
    table = by_cell("field", results, frame, TEXTS["caption"], notes, columns)
    summary = ranges.by_method(
        "field_summary",
        frame,
        {metrics.GAIN: "Gain", GAIN_OVER_BEST: GAIN_OVER_BEST.label},
        (SHARE_OF_CEILING, DRAFT_FORWARDS, STEP_MS),
        TEXTS,
    )
    return Artefact((table, summary), {"field": partial(draw, frame)})


def draw(frame: pd.DataFrame, width: float | None = None) -> Figure:
    """The figure of the table: a panel per temperature, a row per method, a mark per tree."""
    gains = frame[frame.quantity.eq(metrics.GAIN.name) & frame.value.notna()]
    by_row = list(map(labels.method, gains.decoder, gains.verifier))
    is_own = [*map(_is_own, gains.decoder, gains.tree, gains.verifier)]
    gains = gains.assign(method=by_row, tree=gains.tree.mask(is_own, OWN))
    maxima = gains.groupby(["method", "tree"], sort=False).value.mean().groupby("method").max()
    methods = list(maxima.sort_values().index)
    biased = set(gains.method[gains.verdict.map(audits.is_biased)])
    others = [tree for tree in dict.fromkeys(gains.tree) if tree not in MARKS]
    marks = MARKS | {tree: (marker, 26) for tree, marker in zip(others, cycle(OTHER_MARKERS))}
    panels = list(gains.groupby("temperature", sort=False))
    columns, size = max(1, len(panels)), (3.4 + 2.6 * len(panels), 1.2 + 0.32 * len(methods))
    fewest = gains.groupby(["method", "tree", "temperature"], sort=False).dataset.nunique()
    fewest = fewest.groupby("method", sort=False).min()
    names = [name + ranges.of_data_sets(fewest[name], fewest) for name in methods]
    if width:
        columns = columns if width > 2.0 + 1.6 * columns else 1
        names = [figures.wrapped(name, 0.48 * width) for name in names]
        num_rows = math.ceil(max(1, len(panels)) / columns)
        height = 0.06 + 0.13 * max((name.count("\n") + 1 for name in names), default=1)
        size = (width, 1.6 + (0.4 + height * len(methods)) * num_rows)
    lines, ends = "range over data sets", ("value", "value")
    if gains.dataset.nunique() == 1:
        lines, ends = "intervals over prompts", ("lower", "upper")
    spread = {"mean": ("value", "mean"), "least": (ends[0], "min"), "most": (ends[1], "max")}
    figure = Figure(figsize=size, layout="constrained")
    shape = (math.ceil(max(1, len(panels)) / columns), columns)
    grid = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    for axes, (temperature, group) in zip(grid.flat, panels, strict=False):
        axes.hlines(range(len(methods)), 0, 1, colors="0.92", transform=axes.get_yaxis_transform())
        for tree, (marker, size) in marks.items():
            found = group[group.tree == tree].groupby("method").agg(**spread)
            places = [methods.index(name) for name in found.index]
            axes.hlines(places, found.least, found.most, colors="0.45", linewidth=1)
            fills = ["white" if name in biased else "black" for name in found.index]
            looks = {"marker": marker, "s": size, "edgecolors": "black", "zorder": 3}
            axes.scatter(found["mean"], places, c=fills, **looks)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_yticks(range(len(methods)), names)
        axes.set_title(f"T = {temperature:g}", fontsize=figures.SIZE)
        axes.tick_params(labelsize=figures.SIZE)
    trees = [tree for tree in marks if tree in set(gains.tree)]
    style = {"color": "black", "linestyle": ""}
    handles = [
        Line2D([], [], marker=marks[tree][0], label=labels.name("tree", tree), **style)
        for tree in trees
    ]
    figures.legend_above(figure, handles, message(frame))
    label = "accepted length over that of SpecInfer's standard rule on d5b3 "
    label += f"(lines: {lines}; white: biased)"
    figure.supxlabel(label, fontsize=figures.SIZE)
    return figure


def _is_own(decoder: str, tree: str, verifier: str) -> bool:
    """Whether a tree was searched for with this decoder and verifier."""
    return tree == "own_121" or (tree == BEST and verifier == SEARCHED.get(decoder, ("",))[0])


if __name__ == "__main__":
    raise SystemExit(run("field", make))
