"""Figure 1: how acceptance decays from the first sibling under a parent to the last, in small multiples.

Usage: python -m analysis.figure1 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from analysis import figures, labels
from analysis.artefact import Artefact, command, footer, key_cells, key_columns, split_keys
from analysis.figures import CEILING
from analysis.load import SETTING, Plan, Results, load
from analysis.published import Compared
from analysis.stats import ABSENT, BRACKETS, Interval, ratio
from analysis.table import Cell, Column, Gap, Key, Number, Picture, Table, Text

FIELDS = ("num_prefixes", "num_tuples", "selected", "tested", "ceiling_selected", "ceiling_tested")
MIN_SHARE = 5e-3
"""A sibling that is tested more rarely has no rate: it would rest on a few drafted tuples."""
DEFINITIONS = (
    "Entry i: probability that the i-th of {siblings} i.i.d. siblings is accepted, given that those before "
    "it were rejected; a ratio of sums of laws over prefixes and drafted siblings, without accepting or "
    "rejecting anything. Any of {siblings}: that one of them is accepted. A sibling that is tested less "
    "often than once in {rare:,} drafts has no rate.",
    "Ceiling: (a(i) - a(i-1)) / (1 - a(i-1)) for the highest acceptance a(i) that an exact rule can reach "
    "with i siblings. At one sibling an exact rule may lie above it, after lying below; the acceptance of "
    "any of the first i of an exact rule never exceeds a(i). ResiSpec's does, which proves that its output "
    "law is not the target's: its siblings stay acceptable because it accepts them too often.",
    "The paper's Figure 1 shows the standard rule only (Llama-2-7B and Vicuna-7B with Llama-68M on CNN/DM) "
    "and prints no numbers; its text says that acceptance drops sharply after the first candidate.",
)


@dataclass(frozen=True)
class Rates:
    """One line of the figure, in order of the siblings.

    acceptance: of the i-th sibling, given that those before it were rejected; NaN where its share is below
    MIN_SHARE. accepted: that one of the first i siblings is accepted. share: how often the i-th sibling is
    tested at all.
    """

    acceptance: tuple[Interval, ...]
    accepted: tuple[Interval, ...]
    share: tuple[float, ...]


Line: TypeAlias = tuple[Mapping[str, Any], str, Rates | None]
"""The cell, the verifier or CEILING, and the rates of a line; these are None where its cell is not done."""


def lines(results: Results) -> Iterator[Line]:
    """The lines of every setting. The ceiling is that of its first finished cell: no verifier changes it."""
    for _, cells in results.cells.groupby([*SETTING, *results.more], sort=False):
        every = cells.to_dict("records")
        for cell in every:
            rows = results.rows.get(cell["cell_id"])
            rates = None if rows is None else _rates(rows, "", int(rows.num_tuples.iloc[0]))
            yield cell, cell["verifier"], rates
        for cell in [cell for cell in every if cell["status"] == "done"][:1]:
            yield cell, CEILING, _rates(results.rows[cell["cell_id"]], "ceiling_", 1)


def _rates(rows: pd.DataFrame, kind: str, num_tuples: int) -> Rates:
    """num_tuples: what the sums of one prefix add up."""
    above = np.array(rows[f"{kind}selected"].tolist(), np.float64)
    below = np.array(rows[f"{kind}tested"].tolist(), np.float64)
    total = rows.num_prefixes.to_numpy(np.float64) * num_tuples
    share = tuple(float(value) for value in below.sum(0) / total.sum())
    places = range(above.shape[1])
    return Rates(
        acceptance=tuple(
            ratio(above[:, i], below[:, i]) if share[i] >= MIN_SHARE else ABSENT for i in places
        ),
        accepted=tuple(ratio(above[:, : i + 1].sum(1), total) for i in places),
        share=share,
    )


def make(plan: Plan) -> Artefact:
    """The figure, and its numbers as a table; a cell that is not done has a row that says so."""
    results = load(plan, FIELDS)
    drawn = list(lines(results))
    siblings = max((len(rates.share) for _, _, rates in drawn if rates), default=1)
    varying, fixed = split_keys(results.cells, (*SETTING, *results.more))
    definitions = [note.format(siblings=siblings, rare=round(1 / MIN_SHARE)) for note in DEFINITIONS]
    columns = (
        *key_columns(varying),
        Column("verifier", "Method", "key"),
        *(Column(f"acceptance_rate_{place}", str(place), "number") for place in range(1, siblings + 1)),
        Column("accepted_so_far", f"Any of {siblings}", "number"),
    )
    picture = Picture("Acceptance by sibling index", "figure1.png")
    table = Table(
        "figure1",
        columns,
        tuple((*key_cells(line[0], varying), *_cells(line, siblings)) for line in drawn),
        f"Figure 1 of the paper, {plan.profile} profile: acceptance by sibling index.{fixed}",
        pd.DataFrame([record for line in drawn for record in _records(line, results)]),
        footer(results, plan, definitions, [BRACKETS], picture),
    )
    panels = {"figure1": draw(table.frame, varying)}
    compared = Compared("acceptance_rate", "acceptance rates", ("sibling",))
    return Artefact((table,), panels, suffixes=("csv", "md"), compared=compared)


def _records(line: Line, results: Results) -> Iterator[dict[str, Any]]:
    """Rows of the CSV."""
    cell, verifier, rates = line
    shared = {name: cell[name] for name in ("cell_id", *SETTING, *results.more)}
    shared |= {"verifier": verifier, "status": cell["status"], "reason": cell["reason"]}
    shared["num_prompts"] = len(results.rows.get(cell["cell_id"], ()))
    if rates is None:
        empty = ("sibling", "tested_share", "value", "lower", "upper")
        yield shared | dict.fromkeys(empty, np.nan) | {"quantity": ""}
        return
    for quantity, values in {"acceptance_rate": rates.acceptance, "accepted_so_far": rates.accepted}.items():
        for index, (value, share) in enumerate(zip(values, rates.share, strict=True)):
            yield shared | {"sibling": index + 1, "tested_share": share, "quantity": quantity} | vars(value)


def _cells(line: Line, siblings: int) -> list[Cell]:
    """The cells of a line behind its setting."""
    cell, verifier, rates = line
    method = Key(verifier, labels.name("verifier", verifier))
    if rates is None:
        return [method, Gap(cell["status"], cell["reason"]), *[Text()] * siblings]
    numbers = [Number(rate.value) for rate in rates.acceptance]
    absent = [Text()] * (siblings - len(numbers))
    return [method, *numbers, *absent, Number.of(rates.accepted[-1], ".3f")]


def draw(frame: pd.DataFrame, varying: Sequence[str]) -> Figure:
    """Small multiples: a column for every data set, a row for whatever else varies. frame: the table's."""
    across = [key for key in varying if key != "dataset"] or ["temperature"]
    datasets = list(dict.fromkeys(frame.dataset))
    rows = [group for _, group in frame.groupby(across, sort=False)]
    figure = Figure(figsize=(1.0 + 2.5 * len(datasets), 0.9 + 2.1 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(datasets), sharex=True, sharey=True, squeeze=False)
    looks = figures.looks(frame.verifier)
    for axes_row, group in zip(grid, rows, strict=True):
        for axes, dataset in zip(axes_row, datasets, strict=True):
            _panel(axes, group[group.dataset == dataset], looks)
            texts = {key: labels.text(key, group[key].iloc[0]) for key in across}
            named = [
                text if key == "pair" else f"{labels.header(key)} = {text}" for key, text in texts.items()
            ]
            axes.set_title(", ".join([labels.name("dataset", dataset), *named]), fontsize=figures.SIZE)
    handles = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    place = {"loc": "outside upper center", "ncols": len(handles) or 1}
    figure.legend(list(handles.values()), list(handles), **place, frameon=False, fontsize=figures.SIZE + 0.5)
    rare = f"no point where fewer than 1 in {1 / MIN_SHARE:.0f} drafts come that far"
    figure.supxlabel(f"sibling, in the order of testing ({rare})", fontsize=figures.SIZE + 0.5)
    figure.supylabel("acceptance rate, given that earlier ones were rejected", fontsize=figures.SIZE + 0.5)
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, looks: dict[str, figures.Look]) -> None:
    """Every verifier's line; those that are not done are named in a corner."""
    for place, (verifier, rows) in enumerate(frame.groupby("verifier", sort=False)):
        name, shift = labels.name("verifier", verifier), 0.08 * (place - 1)
        points = rows[(rows.quantity == "acceptance_rate") & rows.value.notna()]
        if rows.quantity.eq("").all():
            text, spot = f"{name}: {rows.status.iloc[0]}", {"ha": "right", "va": "top"}
            height = 0.97 - 0.1 * len(axes.texts)
            axes.text(0.97, height, text, transform=axes.transAxes, fontsize=figures.SIZE, **spot)
            continue
        figures.line(axes, points.sibling + shift, points, looks[verifier], name)
    axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_locator(MultipleLocator(1))
    figures.finish(axes)


main = command("figure1", make)


if __name__ == "__main__":
    sys.exit(main())
