"""Figure 1: how acceptance decays from the first sibling to the last, in small multiples."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from analysis import figures, labels, long
from analysis.artefact import Artefact, footer, run, texts
from analysis.load import Plan, Results, load
from analysis.published import Compared
from analysis.stats import ABSENT, BRACKETS, ratio
from analysis.table import Table

TEXTS = texts("figure1")
FIELDS = ("num_prefixes", "num_tuples", "selected", "tested", "ceiling_selected", "ceiling_tested")
MIN_SHARE = 5e-3
"""The least tested share of a sibling with a rate; less would rest on a few drafted tuples."""


def make(plan: Plan) -> Artefact:
    """The figure, and its numbers as a table; a cell that is not done has a row that says so."""
    results = load(plan, FIELDS)
    frame = measure(results)
    siblings = 1 if frame.sibling.isna().all() else int(frame.sibling.max())
    varying, fixed = long.split_keys(results.cells, results.setting)
    columns = long.names(varying, verifier="Method")
    columns += [
        long.number(str(place), ".2f", "acceptance_rate", place, brackets=False)
        for place in range(1, siblings + 1)
    ]
    columns += [long.number(f"Any of {siblings}", ".3f", "accepted_so_far", siblings)]
    keys = ["cell_id", *results.setting, "verifier"]
    lines = long.tabulate(frame, keys, columns, ("quantity", "sibling"))
    about = [note.format(siblings=siblings, rare=round(1 / MIN_SHARE)) for note in TEXTS["about"]]
    notes = footer(results, plan, about, [BRACKETS], TEXTS["picture"])
    table = Table("figure1", *lines, TEXTS["caption"] + fixed, frame, notes)
    compared = Compared("acceptance_rate", "acceptance rates", ("sibling",))
    return Artefact(
        (table,),
        {"figure1": partial(draw, frame, varying)},
        suffixes=("csv", "md"),
        compared=compared,
    )


def measure(results: Results) -> pd.DataFrame:
    """A long frame with a row for each line, sibling and quantity.

    A cell that is not done has one empty row.

    acceptance_rate: of the i-th sibling, given that the siblings before it were rejected; NaN if
    its tested_share is below MIN_SHARE. accepted_so_far: the probability that one of the first i
    siblings is accepted. tested_share: how often the i-th sibling is tested at all.
    """
    records: list[dict[str, Any]] = []
    for lines in long.with_ceilings(results):
        for about, rows in lines:
            if rows is None:
                records.append(about | {"quantity": ""})
                continue
            kind = "ceiling_" if about["verifier"] == long.CEILING else ""
            above, below = (
                np.array(rows[f"{kind}{name}"].tolist()) for name in ("selected", "tested")
            )
            total = rows.num_prefixes * (1 if kind else rows.num_tuples)  # cases in a prompt's sums
            shares = below.sum(0) / total.sum()
            rates = [
                ratio(above[:, i], below[:, i]) if share >= MIN_SHARE else ABSENT
                for i, share in enumerate(shares)
            ]
            so_far = [ratio(above[:, : i + 1].sum(1), total) for i in range(len(shares))]
            records += [
                about
                | {"sibling": i + 1, "tested_share": shares[i], "quantity": quantity}
                | vars(interval)
                for quantity, values in {
                    "acceptance_rate": rates,
                    "accepted_so_far": so_far,
                }.items()
                for i, interval in enumerate(values)
            ]
    about = ["cell_id", *results.setting, "verifier", "status", "reason", "num_prompts"]
    numbers = ["sibling", "quantity", "value", "lower", "upper", "tested_share"]
    return pd.DataFrame(records, columns=[*about, *numbers])


def draw(frame: pd.DataFrame, varying: Sequence[str], width: float | None = None) -> Figure:
    """Small multiples of the table: a column per data set, a row per value of other keys."""
    row_keys = [key for key in varying if key != "dataset"] or ["temperature"]
    datasets = list(dict.fromkeys(frame.dataset))
    rows = [group for _, group in frame.groupby(row_keys, sort=False)]
    panels = [(group, dataset) for group in rows for dataset in datasets]
    columns, size = len(datasets), (1.0 + 2.5 * len(datasets), 0.9 + 2.1 * len(rows))
    if width:
        columns = min(columns, max(1, int((width - 0.6) / 1.3)))
        size = (width, 1.3 + 1.9 * math.ceil(len(panels) / columns))
    figure = Figure(figsize=size, layout="constrained")
    shape = (math.ceil(len(panels) / columns), columns)
    grid = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    looks = figures.looks(frame.verifier)
    for axes, (group, dataset) in zip(grid.flat, panels, strict=False):
        _panel(axes, group[group.dataset == dataset], looks)
        setting = labels.setting({"dataset": dataset, **group[row_keys].iloc[0]})
        axes.set_title(setting, fontsize=figures.SIZE)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    handles = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    title = "By any exact rule later siblings are accepted less"
    figures.legend_above(figure, list(handles.values()), title)
    note = f"no point where fewer than 1 in {1 / MIN_SHARE:.0f} drafts come that far"
    figure.supxlabel(f"sibling, in the order of testing ({note})", fontsize=figures.SIZE + 0.5)
    figure.supylabel(
        "acceptance rate, given that earlier ones were rejected", fontsize=figures.SIZE + 0.5
    )
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, looks: Mapping[str, figures.Look]) -> None:
    """Draw a line for each verifier; verifiers that are not done are named in a corner."""
    for place, (verifier, rows) in enumerate(frame.groupby("verifier", sort=False)):
        name = labels.name("verifier", verifier)
        points = rows[(rows.quantity == "acceptance_rate") & rows.value.notna()]
        if rows.quantity.eq("").all():
            corner = {
                "transform": axes.transAxes,
                "ha": "right",
                "va": "top",
                "fontsize": figures.SIZE,
            }
            axes.text(
                0.97, 0.97 - 0.1 * len(axes.texts), f"{name}: {rows.status.iloc[0]}", **corner
            )
        else:
            figures.line(axes, points.sibling + 0.08 * (place - 1), points, looks[verifier], name)
    axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_locator(MultipleLocator(1))
    figures.finish(axes)


if __name__ == "__main__":
    raise SystemExit(run("figure1", make))
