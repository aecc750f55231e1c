"""The frontier: what every exact verifier emits, on d5b3 and on searched trees, and the ceilings.

Usage: python -m analysis.frontier --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import audits, figures, frontier_shapes, labels, metrics
from analysis.artefact import Artefact, command, footer
from analysis.figures import GREEN, ORANGE, PURPLE, Look
from analysis.labels import Label
from analysis.load import LABELS, Plan, Results, load
from analysis.metric_table import by_cell, definitions, measure, with_quantity
from analysis.metrics import METRICS, Metric
from analysis.scaling import bound, in_halves
from analysis.stats import ABSENT, Interval
from analysis.table import Column, Key, Notes, Paper, Picture, Table, Text
from resispec.audit.verdict import Finding

BOUND, LONG = "bound", "long"
"""Parts of the artefact that do not give rows: cells that measure ceilings, and audits of more prompts."""
BOUND_FIELDS = ("tree_log_ratios", "rollout_log_ratios")
REFERENCE = {"decoder": "specinfer", "tree": "d5b3"}
PICTURE = Picture("Accepted length of exact verifiers", "frontier.png")
COMPARED = (
    "Gain and Speedup: the baseline is SpecInfer's standard rule on d5b3 with the same pair, data set, "
    "temperature and prompts. d5b3 has 121 verified positions, and so have the trees named by that number; "
    "best of N: the tree of N positions that was found for these draws and this verifier, on documents that "
    "are not measured here. A deeper tree takes more forwards of the draft: tokens/s counts them."
)
DRAWS = (
    "SpecInfer's rows draw siblings i.i.d., Sequoia's without replacement; top-k rows take the draft's "
    "likeliest tokens, and so do greedy draws but for the last sibling. Other draws see other candidates: "
    "across them rows compare decoders, not rules."
)
CEILING = Metric(
    "ceiling",
    "Ceiling",
    "no exact verifier emits more on trees drawn like these (a bound over whole paths, held out; brackets: "
    "1.96 standard errors, prefixes counted as independent). It need not be attained. Measured in text that "
    "the target wrote after the same prompts. Draws other than i.i.d. have no ceiling here",
)
BIASED = "ResiSpec is not exact (see its audits): its rows show what bias buys, and are no competitors."
COLUMNS = (METRICS[0], CEILING, *METRICS[1:])


ROWS = (
    ("specinfer", "d5b3", "standard"),
    ("specinfer", "d5b3", "resispec"),
    ("specinfer", "d5b3", "traversal_optimal"),
    ("specinfer", "best_121", "traversal_optimal"),
)
"""Decoder, tree and verifier, all with 121 verified positions."""
TEMPERATURES = (1.0, 0.6)
SUMMARISED = (metrics.ACCEPTED_LENGTH, metrics.GAIN)
SUMMARY = (
    "Ranges are over the data sets. Gain: over SpecInfer's standard rule on d5b3. All trees have 121 "
    "verified positions; best of 121 is searched for on documents that are not measured. Every row with its "
    "interval, its ceiling and its audit: frontier.md.",
)


REFERENCE_TREE = "d5b3"
BEST = "best_121"
BEST_TREES = ("best_16", "best_64", BEST)
VERIFIERS = ("standard", "optimal", "traversal_optimal", "resispec")
"""Methods that are drawn on the reference tree."""
# decoder -> the name and the looks of the line of its searched trees; the first one's draws are those of d5b3
SEARCHED = {
    "specinfer": ("best trees: traversal,\noptimal weights", Look(GREEN, "*", "--")),
    "sequoia": ("best trees: traversal,\nwithout replacement", Look(ORANGE, "v", "-.")),
    "top_k": ("best trees: top-k", Look(PURPLE, "P", ":")),
}


def make(plan: Plan) -> Artefact:
    """The table of what was decoded, its summary, the table of searched trees, and the figure."""
    results = load(plan.parts(lambda part: part not in (BOUND, LONG)), metrics.fields())
    longer = load(plan.parts(lambda part: part == LONG))
    bounds = load(plan.parts(lambda part: part == BOUND), BOUND_FIELDS)
    frame = _with_ceilings(measure(results, baseline=lambda _: REFERENCE), bounds)
    shapes = frontier_shapes.read(plan)
    about = (BIASED, COMPARED, DRAWS, *frontier_shapes.by_cost(shapes), *_longer(longer))
    notes = footer(results, plan, about, definitions(COLUMNS, results), PICTURE)
    caption = f"The frontier of exact verification, {plan.profile} profile."
    table = by_cell("frontier", results, frame, caption, notes, COLUMNS)
    tables = (table, summary(frame, plan), frontier_shapes.table(shapes, plan))
    return Artefact(tables, {"frontier": draw(frame)})


def _with_ceilings(frame: pd.DataFrame, bounds: Results) -> pd.DataFrame:
    """The frame with the quantity "ceiling" of every cell; NaN where its tree has none."""
    keys = [name for name in LABELS if name != "verifier"]
    keys += [name for name in bounds.more if name in frame]
    ceilings = {}
    for cell in bounds.cells.to_dict("records"):
        if cell["cell_id"] in bounds.rows:
            rows = bounds.rows[cell["cell_id"]]
            samples = (in_halves(rows[name]) for name in ("rollout_log_ratios", "tree_log_ratios"))
            ceilings[tuple(cell[key] for key in keys)] = bound(*samples)

    def ceiling(row: Mapping[str, Any]) -> Interval:
        return ceilings.get(tuple(row[key] for key in keys), ABSENT)

    return with_quantity(frame, CEILING.name, ceiling)


def _longer(longer: Results) -> list[str]:
    """The verdicts of the longer audits, in one note."""
    texts = []
    for cell in longer.cells.to_dict("records"):
        words = [labels.text(key, cell[key]) for key in ("dataset", "tree")]
        words += [f"T = {cell['temperature']:g}", labels.method(cell["decoder"], cell["verifier"])]
        audit = audits.cell_of(audits.of_cell(cell, longer.rows.get(cell["cell_id"])))
        texts.append(f"{', '.join(words)}: {audit}")
    return [f"Longer audits: {'; '.join(texts)}."] if texts else []


def summary(frame: pd.DataFrame, plan: Plan) -> Table:
    """The frontier in a few lines: the paper's two rules, and the best exact verifiers on as many positions.

    frame: of the frontier's table.
    """
    columns = [Column("tree", "Tree", "key"), Column("method", "Method", "key")]
    columns += [
        Column(f"{metric.name} {temperature:g}", f"{metric.label}, T = {temperature:g}", "number")
        for temperature in TEMPERATURES
        for metric in SUMMARISED
    ]
    records, lines = [], []
    for decoder, tree, verifier in ROWS:
        own = frame[(frame.decoder == decoder) & (frame.tree == tree) & (frame.verifier == verifier)]
        ranges = []
        for temperature in TEMPERATURES:
            for metric in SUMMARISED:
                values = own[(own.temperature == temperature) & (own.quantity == metric.name)].value
                low, high = float(values.min()), float(values.max())
                ranges.append(Paper(low, high, metric.spec))
                named = {"decoder": decoder, "tree": tree, "verifier": verifier, "temperature": temperature}
                records.append(named | {"quantity": metric.name, "low": low, "high": high})
        audited = own[(own.quantity == metrics.ACCEPTED_LENGTH.name) & own.temperature.isin(TEMPERATURES)]
        keys = (Key(tree, labels.name("tree", tree)), Key(verifier, labels.method(decoder, verifier)))
        lines.append((*keys, *ranges, Text(audits.counted(audited.verdict))))
    return Table(
        "frontier_summary",
        (*columns, Column("verdict", "Audit", "audit")),
        tuple(lines),
        f"The claim and what is possible exactly, {plan.profile} profile.",
        pd.DataFrame(records),
        Notes(SUMMARY),
    )


def message(frame: pd.DataFrame) -> str:
    """The figure in a sentence: the highest gain without a bias seen, and ResiSpec's.

    frame: rows of one data set and temperature, long.
    """
    gains = frame[(frame.quantity == "accepted_length_gain") & frame.value.notna()]
    unbiased = gains[gains.verdict == Finding.NO_BIAS_SEEN]
    if unbiased.empty:
        return "Accepted length of exact verification, and of ResiSpec"
    best = unbiased.loc[unbiased.value.idxmax()]
    size = labels.num_nodes(best.tree)
    where = f"at {size} positions" if size else f"on {labels.name('tree', best.tree)}"
    is_biased = (gains[gains.verifier == "resispec"].verdict == Finding.BIASED).any()
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
    sized = frame[np.array([Label.of(tree).option in BEST_TREES for tree in frame.tree], bool)]
    lines = [
        (name, look, sized[(sized.decoder == decoder) & (sized.quantity == "accepted_length")])
        for decoder, (name, look) in SEARCHED.items()
    ]
    lines.append(("best trees: ceiling", figures.LOOKS[figures.CEILING], sized[sized.quantity == "ceiling"]))
    lines += _on_reference(frame)
    _draw(
        axes,
        [(name, look, rows.assign(x=rows.tree.map(labels.num_nodes))) for name, look, rows in lines],
        gap,
    )
    axes.set_xlabel("verified positions", fontsize=figures.SIZE + 0.5)


def _on_reference(frame: pd.DataFrame) -> list[tuple[str, Look, pd.DataFrame]]:
    rows = frame[(frame.tree == REFERENCE_TREE) & (frame.quantity == "accepted_length")]
    return [
        (
            f"{REFERENCE_TREE}: {labels.name('verifier', name)}{' (biased)' * (name == 'resispec')}",
            figures.LOOKS[name],
            rows[rows.verifier == name],
        )
        for name in VERIFIERS
    ]


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


main = command("frontier", make)


if __name__ == "__main__":
    sys.exit(main())
