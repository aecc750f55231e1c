"""Figure 1: how acceptance decays from the first sibling under a parent to the last, in small multiples.

Usage: python -m analysis.figure1 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from analysis import labels, law_report
from analysis.decay import CEILING, MIN_SHARE, Line, lines, method
from analysis.law_load import SETTING, LawResults, load_rows
from analysis.law_report import LawTable, bracketed, footer, gap, number
from analysis.save_figure import save_figure
from analysis.script import run
from resispec.law_rows import DecayRow

COLUMNS = [
    "cell_id", *SETTING, "verifier", "status", "reason", "num_prompts", "sibling", "tested_share", "quantity", "value", "lower",
    "upper",
]  # fmt: skip
# verifier -> marker, line style, grey, horizontal shift; the greys are told apart without the other two, and the reverse
STYLES: dict[str, tuple[str, str, str, float]] = {
    "standard": ("o", "-", "0.0", 0.0),
    "resispec": ("s", "--", "0.35", 0.1),
    CEILING: ("^", ":", "0.6", -0.1),
}
OTHERS = (("D", "-.", "0.2", 0.06), ("v", "-", "0.5", -0.06), ("P", "--", "0.7", 0.18))
DEFINITIONS = (
    "Entry i: probability that the i-th of {siblings} i.i.d. siblings is accepted, given that those before it were rejected; "
    "a ratio of sums of laws over contexts and drafted siblings, without accepting or rejecting anything. Any of {siblings}: "
    "that one of them is accepted. A sibling that is tested less often than once in {rare:,} drafts has no rate.",
    "Ceiling: (a(i) - a(i-1)) / (1 - a(i-1)) for the highest acceptance a(i) that an exact rule can reach with i siblings. At "
    "one sibling an exact rule may lie above it, after lying below; the acceptance of any of the first i of an exact rule "
    "never exceeds a(i). ResiSpec's does, which proves that its output law is not the target's: its siblings stay acceptable "
    "because it accepts them too often.",
    "The paper's Figure 1 shows the standard rule only (Llama-2-7B and Vicuna-7B with Llama-68M on CNN/DM) and prints no "
    "numbers; its text says that acceptance drops sharply after the first candidate.",
)


def build(results: LawResults[DecayRow], profile: str, command: str) -> tuple[LawTable, list[Line]]:
    """The figure's numbers as a table, and its lines; a cell that is not done has a row that says so."""
    drawn = list(lines(results))
    siblings = max((len(line.rates.share) for line in drawn if line.rates), default=1)
    shown = pd.DataFrame([_shown(line, siblings) for line in drawn])
    constant = [key for key in SETTING if len(set(results.cells[key])) == 1]
    settings = "".join(
        f" {labels.COLUMNS[key].label}: {labels.text(key, results.cells[key].iloc[0])}." for key in constant
    )
    definitions = [note.format(siblings=siblings, rare=round(1 / MIN_SHARE)) for note in DEFINITIONS]
    table = LawTable(
        stem="figure1",
        frame=pd.DataFrame([record for line in drawn for record in _records(line, results)], columns=COLUMNS),
        shown=shown.drop(columns=[labels.COLUMNS[key].label for key in constant]),
        num_keys=len(SETTING) + 1 - len(constant),
        caption=f"Figure 1 of the paper, {profile} profile: acceptance by sibling index.{settings}",
        notes=(
            "![Acceptance by sibling index](figure1.png)",
            *definitions,
            *footer(results, profile, command),
        ),
    )
    return table, drawn


def _records(line: Line, results: LawResults[DecayRow]) -> Iterator[dict[str, Any]]:
    """Rows of the CSV."""
    shared = {key: line.cell[key] for key in ("cell_id", *SETTING, "status", "reason")} | {
        "verifier": line.verifier
    }
    shared["num_prompts"] = len(results.rows.get(line.cell["cell_id"], ()))
    if line.rates is None:
        yield shared
        return
    for quantity, values in (
        ("acceptance_rate", line.rates.acceptance),
        ("accepted_so_far", line.rates.accepted),
    ):
        for index, (found, share) in enumerate(zip(values, line.rates.share, strict=True)):
            yield shared | {"sibling": index + 1, "tested_share": share, "quantity": quantity, **vars(found)}


def _shown(line: Line, siblings: int) -> dict[str, str]:
    """A printed row."""
    row = {labels.COLUMNS[key].label: labels.text(key, line.cell[key]) for key in SETTING} | {
        "Method": method(line.verifier)
    }
    if line.rates is None:
        numbers = [*map(str, range(1, siblings + 1)), f"Any of {siblings}"]
        return row | dict.fromkeys(numbers, labels.ABSENT) | {numbers[0]: gap(line.cell)}
    rates = {str(index + 1): number(found.value, ".2f") for index, found in enumerate(line.rates.acceptance)}
    return row | rates | {f"Any of {siblings}": bracketed(line.rates.accepted[-1], ".3f")}


def draw(drawn: Sequence[Line]) -> Figure:
    """Small multiples: a row for every pair and temperature, a column for every data set."""
    order = list(dict.fromkeys((line.cell["pair"], line.cell["temperature"]) for line in drawn))
    datasets = list(dict.fromkeys(line.cell["dataset"] for line in drawn))
    figure = Figure(figsize=(1.0 + 2.5 * len(datasets), 0.9 + 2.1 * len(order)), layout="constrained")
    grid = figure.subplots(len(order), len(datasets), sharex=True, sharey=True, squeeze=False)
    pairs = {pair for pair, _ in order}
    for axes_row, (pair, temperature) in zip(grid, order, strict=True):
        for axes, dataset in zip(axes_row, datasets, strict=True):
            setting = {"pair": pair, "temperature": temperature, "dataset": dataset}
            _panel(
                axes,
                [line for line in drawn if all(line.cell[key] == value for key, value in setting.items())],
            )
            named = f"{labels.name('pair', pair)}, " if len(pairs) > 1 else ""
            axes.set_title(f"{named}{labels.name('dataset', dataset)}, T = {temperature:g}", fontsize=9)
    handles = {
        handle.get_label(): handle for axes in grid.flat for handle in axes.get_legend_handles_labels()[0]
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper center",
        ncols=len(handles) or 1,
        frameon=False,
        fontsize=9,
    )
    rare = f"no point where fewer than 1 in {1 / MIN_SHARE:.0f} drafts come that far"
    figure.supxlabel(f"sibling, in the order of testing ({rare})", fontsize=9)
    figure.supylabel("acceptance rate, given that earlier ones were rejected", fontsize=9)
    return figure


def _panel(axes: Axes, drawn: Sequence[Line]) -> None:
    others = iter(OTHERS)
    for line in drawn:
        marker, style, grey, shift = STYLES.get(line.verifier) or next(others)
        if line.rates is None:
            text = f"{method(line.verifier)}: {line.cell['status']}"
            axes.text(
                0.97,
                0.97 - 0.1 * len(axes.texts),
                text,
                transform=axes.transAxes,
                ha="right",
                va="top",
                fontsize=8,
            )
            continue
        points = [
            (index + 1 + shift, found)
            for index, found in enumerate(line.rates.acceptance)
            if found.value == found.value
        ]
        below, above = ([max(0.0, side(found)) for _, found in points] for side in (_below, _above))
        axes.errorbar(
            [place for place, _ in points], [found.value for _, found in points], yerr=(below, above), color=grey,
            label=method(line.verifier), marker=marker, linestyle=style, markersize=4, linewidth=1.2, elinewidth=0.8, capsize=1.5,
        )  # fmt: skip
    axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_locator(MultipleLocator(1))
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _below(found: Any) -> float:
    return found.value - found.lower if found.lower == found.lower else 0.0


def _above(found: Any) -> float:
    return found.upper - found.value if found.upper == found.upper else 0.0


def publish(made: tuple[LawTable, list[Line]], folder: Path) -> tuple[str, list[Path]]:
    """Write `folder/figure1.csv`, `.md`, `.png` and `.pdf`; return the Markdown and the paths."""
    table, drawn = made
    text, paths = law_report.publish(table, folder, suffixes=("csv", "md"))
    return text, [*paths, *save_figure(draw(drawn), folder / table.stem)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return run("figure1", build, arguments, read=partial(load_rows, row_type=DecayRow), publish=publish)


if __name__ == "__main__":
    sys.exit(main())
