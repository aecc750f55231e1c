"""The frontier: accepted lengths of verifiers on d5b3 and on searched trees, and the ceilings."""

from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import audits, figures, frontier_shapes, labels, long, metrics
from analysis.artefact import Artefact, footer, run, texts
from analysis.ceilings import CEILING, is_bound, with_ceilings
from analysis.figures import GREEN, ORANGE, PURPLE, SIZE, Look
from analysis.labels import Label
from analysis.load import Plan, Results, load
from analysis.metric_table import baseline_of, by_cell, definitions, measure, of_other_prompts
from analysis.table import Paper

TEXTS = texts("frontier")
LONG = "long"
"""The part of the artefact with audits of more prompts, which have no rows in the table."""
REFERENCE_TREE, BEST = "d5b3", "best_121"
BEST_TREES = ("best_16", "best_64", BEST)
COLUMNS = (metrics.METRICS[0], CEILING, *metrics.METRICS[1:])
VERIFIERS = ("standard", "optimal", "traversal_optimal", "resispec")
"""Verifiers whose lines on the reference tree are in the figure, as are a user's own."""
REFERENCE = "specinfer"
"""The decoder whose draws are those of d5b3."""
# decoder -> the verifier of its searched trees, and the name and the looks of their line
SEARCHED = {
    REFERENCE: (
        "traversal_optimal",
        "best trees: traversal,\noptimal weights",
        Look(GREEN, "*", "--"),
    ),
    "sequoia": (
        "traversal",
        "best trees: traversal,\nwithout replacement",
        Look(ORANGE, "v", "-."),
    ),
    "top_k": ("naive", "best trees: top-k", Look(PURPLE, "P", ":")),
}
Line: TypeAlias = tuple[str, Look, pd.DataFrame]
"""Name, looks and rows."""


def make(plan: Plan) -> Artefact:
    """The table of what was decoded, the table of searched trees, and the figure."""
    results = load(
        plan.only(lambda cell: not is_bound(cell.part) and cell.part != LONG), metrics.FIELDS
    )
    results.check_one_setting()
    long_results = load(plan.only(lambda cell: cell.part == LONG))
    frame = with_ceilings(measure(results, baseline_of(plan)), plan)
    shapes = frontier_shapes.read(plan)
    about = (
        *TEXTS["about"],
        *of_other_prompts(frame, CEILING),
        *frontier_shapes.by_cost(shapes),
        *_longer(long_results),
    )
    notes = footer(results, plan, about, definitions(COLUMNS, results), TEXTS["picture"])
    table = by_cell("frontier", results, frame, TEXTS["caption"], notes, COLUMNS)
    tables = (table, frontier_shapes.table(shapes, plan))
    return Artefact(tables, {"frontier": partial(draw, frame)})


def _longer(results: Results) -> list[str]:
    """The verdicts of the longer audits, in one note."""
    lines = []
    for about, rows in results.each():
        words = labels.setting({key: about[key] for key in ("dataset", "tree", "temperature")})
        method = labels.method(about["decoder"], about["verifier"])
        lines.append(f"{words}, {method}: {audits.cell_of(audits.of_cell(about, rows, results))}")
    return [f"Longer audits: {'; '.join(lines)}."] if lines else []


def message(frame: pd.DataFrame) -> str:
    """The figure in a sentence: gains of the best method with no bias seen, and ResiSpec's verdict.

    frame: a long frame.
    """
    gains = frame[(frame.quantity == metrics.GAIN.name) & frame.value.notna()]
    resispec = audits.of_resispec(gains)
    best = audits.best_unbiased(gains.drop(resispec.index))
    if best.empty:
        return "Accepted length of exact verification, and of ResiSpec"
    decoder, tree, verifier = best[audits.METHOD].iloc[0]
    method = labels.method(decoder, verifier)
    where = labels.name("tree", tree)
    gain = Paper(best.value.min(), best.value.max())
    at = labels.setting({"temperature": best.temperature.iloc[0]})
    text = (
        f"{method[:1].upper()}{method[1:]} on {where}:\n"
        f"{gain} times the tokens of SpecInfer on d5b3 at {at}, no bias seen"
    )
    is_biased = resispec.verdict.map(audits.is_biased).any()
    return text + ("; ResiSpec's gain is bias" if is_biased else "")


def draw(frame: pd.DataFrame, width: float | None = None) -> Figure:
    """The figure, for the data set measured at the most temperatures.

    The left panel has VERIFIERS on d5b3, its ceiling and the best tree with as many positions. The
    right one, if several sizes were measured, has the best trees of each kind of draws by size,
    their ceiling and d5b3. frame: the frontier's long frame.
    """
    of_all = frame[frame.decoder.isin(list(SEARCHED)) & frame.value.notna()]
    measured = of_all
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
    on_d5b3 = lengths[lengths.tree == REFERENCE_TREE]
    ours = labels.options("verifier")
    users = [name for name in dict.fromkeys(on_d5b3.verifier) if name not in ours]
    looks = figures.looks(users)
    biased = {"resispec", *on_d5b3.verifier[audits.are(audits.is_biased, on_d5b3)]}
    on_reference = [
        line
        for name in (*VERIFIERS, *users)
        for line in _by_method(
            f"{REFERENCE_TREE}: "
            f"{labels.name('verifier', name)}{' (biased)' if name in biased else ''}",
            looks[name],
            on_d5b3[on_d5b3.verifier == name],
            (REFERENCE, name),
        )
    ]
    verifier, name, look = SEARCHED[REFERENCE]
    best = lengths[(lengths.tree == BEST) & (lengths.decoder == REFERENCE)]
    of_reference = ceilings[(ceilings.tree == REFERENCE_TREE) & (ceilings.verifier == "standard")]
    at_121 = [
        *on_reference,
        *_by_method(name.replace("trees", "tree"), look, best, (REFERENCE, verifier)),
        ("d5b3: ceiling", bound, of_reference),
    ]
    on_searched = lengths[lengths.option.isin(BEST_TREES)]
    of_sizes = [
        *(
            line
            for decoder, (verifier, name, look) in SEARCHED.items()
            for line in _by_method(
                name, look, on_searched[on_searched.decoder == decoder], (decoder, verifier)
            )
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
    figure.suptitle(message(of_all), fontsize=SIZE + 3)
    return figure


def _by_method(name: str, look: Look, rows: pd.DataFrame, usual: tuple[str, str]) -> Iterator[Line]:
    """A line per decoder and verifier of the rows; its name says which, unless they are usual."""
    for method, own in rows.groupby(["decoder", "verifier"], sort=False):
        is_usual = tuple(map(str, method)) == usual
        yield name if is_usual else f"{name}: {labels.method(*method)}", look, own


def _panel(
    axes: Axes,
    lines: list[Line],
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
    figures.label_ends(axes, ends, 15 if room else 19)
    axes.set_xticks(sorted({place for _, _, rows in lines for place in rows[x].dropna()}))
    axes.set_xlabel(label, fontsize=SIZE + 0.5)
    figures.finish(axes)


if __name__ == "__main__":
    raise SystemExit(run("frontier", make))
