"""The frontier: the accepted length of each verifier,
on d5b3 and on searched trees, and the ceilings.
"""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import audits, figures, frontier_shapes, labels, long, metrics
from analysis.artefact import Artefact, footer, run, texts
from analysis.ceilings import CEILING, is_bound, with_ceilings
from analysis.figures import GREEN, ORANGE, PURPLE, SIZE, Look
from analysis.labels import Label
from analysis.load import Plan, Results, filters_in, load
from analysis.metric_table import by_cell, definitions, measure, specinfer_on_d5b3
from analysis.table import Column, Notes, Paper, Table, TableCell
from resispec.audit.verdict import Finding

TEXTS = texts("frontier")
LONG = "long"
"""The part of the artefact with audits of more prompts, which have no rows in the table."""
REFERENCE_TREE, BEST = "d5b3", "best_121"
BEST_TREES = ("best_16", "best_64", BEST)
COLUMNS = (metrics.METRICS[0], CEILING, *metrics.METRICS[1:])
SUMMARISED = (
    (REFERENCE_TREE, "standard"),
    (REFERENCE_TREE, "resispec"),
    (REFERENCE_TREE, "traversal_optimal"),
    (BEST, "traversal_optimal"),
)
"""Trees of 121 verified positions, and verifiers, all with SpecInfer's draws:
the lines of the summary.
"""
TEMPERATURES = (1.0, 0.6)
VERIFIERS = ("standard", "optimal", "traversal_optimal", "resispec")
"""Verifiers whose lines on the reference tree are in the figure."""
# decoder -> the name and the looks of the line of its searched trees; the first one's draws are
# those of d5b3
SEARCHED = {
    "specinfer": ("best trees: traversal,\noptimal weights", Look(GREEN, "*", "--")),
    "sequoia": ("best trees: traversal,\nwithout replacement", Look(ORANGE, "v", "-.")),
    "top_k": ("best trees: top-k", Look(PURPLE, "P", ":")),
}


def make(plan: Plan) -> Artefact:
    """The table of what was decoded, its summary, the table of searched trees, and the figure."""
    results = load(
        plan.only(lambda cell: not is_bound(cell.part) and cell.part != LONG), metrics.FIELDS
    )
    results.check_one_law()
    long_results = load(plan.only(lambda cell: cell.part == LONG))
    frame = with_ceilings(measure(results, specinfer_on_d5b3), plan)
    shapes = frontier_shapes.read(plan)
    about = (*TEXTS["about"], *frontier_shapes.by_cost(shapes), *_longer(long_results))
    notes = footer(results, plan, about, definitions(COLUMNS, results), TEXTS["picture"])
    table = by_cell("frontier", results, frame, TEXTS["caption"], notes, COLUMNS)
    law = long.split_keys(frame, filters_in(frame))[1]
    tables = (table, summary(frame, law), frontier_shapes.table(shapes, plan))
    return Artefact(tables, {"frontier": partial(draw, frame)})


def _longer(results: Results) -> list[str]:
    """The verdicts of the longer audits, in one note."""
    lines = []
    for about, rows in results.each():
        words = labels.setting({key: about[key] for key in ("dataset", "tree", "temperature")})
        method = labels.method(about["decoder"], about["verifier"])
        lines.append(f"{words}, {method}: {audits.cell_of(audits.of_cell(about, rows))}")
    return [f"Longer audits: {'; '.join(lines)}."] if lines else []


def summary(frame: pd.DataFrame, law: str) -> Table:
    """The frontier in a few lines: the paper's two rules,
    and the best exact verifiers at 121 positions.

    frame: that of the frontier's table. law: a sentence about the filters that are on, or "".
    """
    ranges = [
        (metric, at) for at in TEMPERATURES for metric in (metrics.ACCEPTED_LENGTH, metrics.GAIN)
    ]
    columns = long.names(("tree", "method"))
    columns += [
        Column(metric.name, f"{metric.label}, T = {at:g}", "number") for metric, at in ranges
    ]
    columns.append(Column("verdict", "Audit", "audit"))
    lines, records = [], []
    for tree, verifier in SUMMARISED:
        place = {"decoder": "specinfer", "tree": tree, "verifier": verifier}
        rows = frame[
            (frame.decoder == "specinfer") & (frame.tree == tree) & (frame.verifier == verifier)
        ]
        rows = rows[rows.temperature.isin(TEMPERATURES)]
        cells: list[TableCell] = [long.key_cell(place, key) for key in ("tree", "method")]
        for metric, at in ranges:
            values = rows.value[(rows.temperature == at) & (rows.quantity == metric.name)]
            low, high = values.min(), values.max()
            records.append(
                place | {"temperature": at, "quantity": metric.name, "low": low, "high": high}
            )
            cells.append(Paper(low, high, metric.spec))
        verdicts = rows.verdict[rows.quantity == metrics.ACCEPTED_LENGTH.name]
        lines.append((*cells, audits.counted(verdicts)))
    caption, notes = TEXTS["summary_caption"] + law, Notes(tuple(TEXTS["summary"]))
    numbers = pd.DataFrame(records)
    return Table("frontier_summary", tuple(columns), tuple(lines), caption, numbers, notes)


def message(frame: pd.DataFrame) -> str:
    """The figure in a sentence: the highest gain of the others without a bias seen,
    and ResiSpec's verdict.

    frame: a long frame.
    """
    gains = frame[(frame.quantity == "accepted_length_gain") & frame.value.notna()]
    resispec = audits.of_resispec(gains)
    others = gains.drop(resispec.index)
    unbiased = others[others.verdict == Finding.NO_BIAS_SEEN]
    if unbiased.empty:
        return "Accepted length of exact verification, and of ResiSpec"
    best = unbiased.loc[unbiased.value.idxmax()]
    size = labels.num_nodes(best.tree)
    place = f"at {size} positions" if size else f"on {labels.name('tree', best.tree)}"
    is_biased = (resispec.verdict == Finding.BIASED).any()
    text = f"Exact verification reaches {best.value:.1f}× SpecInfer's accepted length {place}"
    return text + ("; ResiSpec's gain is bias" if is_biased else "")


def draw(frame: pd.DataFrame, width: float | None = None) -> Figure:
    """The figure, for the data set measured at the most temperatures.

    frame: the frontier's long frame. width: of the figure, in inches; in a narrow one the panels
    stand below each other.

    The left panel has VERIFIERS on d5b3, its ceiling and the best tree with as many positions. The
    right one, if several sizes were measured, has the best trees of each kind of draws by size,
    their ceiling and d5b3.
    """
    measured = frame[frame.decoder.isin(list(SEARCHED)) & frame.value.notna()]
    dataset = (
        measured.groupby("dataset", sort=False).temperature.nunique().idxmax()
        if len(measured)
        else ""
    )
    measured = measured[measured.dataset == dataset]
    own = measured[measured.quantity.isin(["accepted_length", CEILING.name])]
    own = own.assign(
        size=own.tree.map(labels.num_nodes), option=[Label.of(tree).option for tree in own.tree]
    )
    lengths, ceilings = (own[own.quantity == name] for name in ("accepted_length", CEILING.name))
    hottest, bound = measured.temperature.max(), figures.LOOKS[long.CEILING]
    on_reference = [
        (
            f"{REFERENCE_TREE}: "
            f"{labels.name('verifier', name)}{' (biased)' if name == 'resispec' else ''}",
            figures.LOOKS[name],
            lengths[(lengths.tree == REFERENCE_TREE) & (lengths.verifier == name)],
        )
        for name in VERIFIERS
    ]
    name, look = SEARCHED["specinfer"]
    best = lengths[(lengths.tree == BEST) & (lengths.decoder == "specinfer")]
    of_reference = ceilings[(ceilings.tree == REFERENCE_TREE) & (ceilings.verifier == "standard")]
    at_121 = [
        *on_reference,
        (name.replace("trees", "tree"), look, best),
        ("d5b3: ceiling", bound, of_reference),
    ]
    of_sizes = [
        *(
            (name, look, lengths[lengths.option.isin(BEST_TREES) & (lengths.decoder == decoder)])
            for decoder, (name, look) in SEARCHED.items()
        ),
        ("best trees: ceiling", bound, ceilings[ceilings.option.isin(BEST_TREES)]),
        *on_reference,
    ]
    at_hottest = [(name, look, rows[rows.temperature == hottest]) for name, look, rows in of_sizes]
    panels = [(at_121, "temperature", "temperature", "121 positions")]
    if lengths["size"].nunique() > 1:
        panels.append((at_hottest, "size", "verified positions", f"T = {hottest:g}"))
    columns, size, room = len(panels), (9.6, 4.2), None
    if width:
        columns = columns if width > 4 * columns else 1
        size, room = (width, 0.6 + 3.6 * (len(panels) // columns)), 0.4 * width / columns
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(panels) // columns, columns, sharey=True, squeeze=False)
    row = grid.ravel()
    row[0].set_ylim(1, own[["value", "upper"]].max().max() + 0.2 if len(own) else 2.0)
    for axes, (lines, x, label, condition) in zip(row, panels, strict=True):
        _panel(axes, lines, x, label, room)
        axes.set_title(f"{labels.name('dataset', dataset)}, {condition}", fontsize=SIZE + 0.5)
    for axes in grid[:, 0]:
        axes.set_ylabel("accepted length, tokens a step", fontsize=SIZE + 0.5)
    figure.suptitle(message(measured[measured.temperature == hottest]), fontsize=SIZE + 3)
    return figure


def _panel(
    axes: Axes,
    lines: list[tuple[str, Look, pd.DataFrame]],
    x: str,
    label: str,
    room: float | None,
) -> None:
    """Draw lines with their names at their right ends; a line without rows is left out.

    room: the width for the names, in inches; None if there is enough.
    """
    ends = []
    for name, look, rows in lines:
        rows = rows[rows[x].notna()].sort_values(x)
        if len(rows):
            figures.line(axes, rows[x], rows, look)
            text = figures.wrapped(name.replace("\n", " "), room) if room else name
            ends.append((float(rows[x].iloc[-1]), float(rows.value.iloc[-1]), text, look.colour))
    bottom, top = axes.get_ylim()
    figures.label_ends(axes, ends, gap=(top - bottom) / (15 if room else 19))
    axes.set_xticks(sorted({place for _, _, rows in lines for place in rows[x].dropna()}))
    axes.set_xlabel(label, fontsize=SIZE + 0.5)
    figures.finish(axes)


if __name__ == "__main__":
    raise SystemExit(run("frontier", make))
