"""The frontier: what every exact verifier emits, on d5b3 and on trees of its own, beside the biased ResiSpec and the ceilings.

Usage: python -m analysis.frontier --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import audits, frontier_shapes, labels, law_report, report
from analysis.bootstrap import Interval
from analysis.frontier_figure import draw
from analysis.law_load import LawResults, load_rows
from analysis.law_report import LawTable
from analysis.load import LABELS, PROMPT_COLUMNS, Results, load, read_cell
from analysis.measure import measure
from analysis.report import Table, footer
from analysis.save_figure import save_figure
from analysis.scaling import bound, in_halves
from analysis.script import run
from experiments.cells import Cell
from resispec.law_rows import BoundRow

BOUND = "experiments.tasks.bound.Bound"
REFERENCE = {"decoder": "specinfer", "tree": "d5b3"}
QUANTITIES = (
    "accepted_length",
    "ceiling",
    "accepted_length_gain",
    "tokens_per_s",
    "speedup",
    "speedup_vs_autoregressive",
)
PICTURE = "![Accepted length of exact verifiers](frontier.png)"
COMPARED = (
    "Gain and Speedup: over SpecInfer's standard rule on d5b3 with the same pair, data set, temperature and prompts. d5b3 has "
    "121 verified positions, and so have the trees named by that number; best of N: the tree of N positions that was found for "
    "these draws and this verifier, on documents that are not measured here. A deeper tree takes more forwards of the draft: "
    "tokens/s counts them."
)
DRAWS = (
    "SpecInfer's rows draw siblings i.i.d., Sequoia's without replacement; top-k rows take the draft's likeliest tokens, and so "
    "do greedy draws but for the last sibling. Other draws see other candidates: across them rows compare decoders, not rules."
)
CEILING = (
    "Ceiling: no exact verifier emits more on trees drawn like these (a bound over whole paths, held out; brackets: 1.96 "
    "standard errors, contexts counted as independent). It need not be attained. Measured in text that the target wrote after "
    "the same prompts. Draws other than i.i.d. have no ceiling here."
)
BIASED = "ResiSpec is not exact (see its audits): its rows show what bias buys, and are no competitors."


@dataclass(frozen=True)
class Loaded:
    """decoded: cells that decode, and their audits. longer: cells that audit more prompts, with labels, status and statistics.

    bounds: cells that measure ceilings. shapes: what the searched trees say of themselves, see `frontier_shapes`.
    """

    decoded: Results
    longer: list[dict[str, Any]]
    bounds: LawResults[BoundRow]
    shapes: list[dict[str, Any]]


@dataclass(frozen=True)
class Frontier:
    """The table of what was decoded, and the table of searched shapes."""

    table: Table
    shapes: LawTable


def read(cells: Iterable[Cell]) -> Loaded:
    """Load every kind of cell that the frontier asks for."""
    every = list(cells)
    bounds = [cell for cell in every if cell.config["task"]["_target_"] == BOUND]
    decoding = [cell for cell in every if cell not in bounds]
    longer = [cell for cell in decoding if cell.config["num_prompts"] == cell.config["prompt_counts"]["long"]]
    decoded = load([cell for cell in decoding if cell not in longer])
    return Loaded(
        decoded,
        [_audited(cell) for cell in longer],
        load_rows(bounds, BoundRow),
        frontier_shapes.read(decoding),
    )


def _audited(cell: Cell) -> dict[str, Any]:
    entry = read_cell(cell)
    found = (
        audits.audit(cell.cell_id, cell.folder, pd.DataFrame(columns=list(PROMPT_COLUMNS)))
        if entry["status"] == "done"
        else {}
    )
    return entry | {"audited_tokens": np.nan, "verdict": f"audit {entry['status']}"} | found


def build(loaded: Loaded, profile: str, command: str) -> Frontier:
    """The tables of the loaded cells; every cell that decodes has a row."""
    frame = measure(loaded.decoded, baseline=lambda _: REFERENCE)
    frame = pd.concat([frame, _ceilings(frame, loaded.bounds)], ignore_index=True)
    table = Table(
        stem="frontier",
        frame=frame,
        keys=("pair", "temperature", "dataset", "tree", "method"),
        caption=f"The frontier of exact verification, {profile} profile.",
        notes=(
            *(
                PICTURE,
                BIASED,
                COMPARED,
                DRAWS,
                CEILING,
                *frontier_shapes.by_cost(loaded.shapes),
                *_longer(loaded.longer),
            ),
            *footer(loaded.decoded, profile, command),
        ),
        quantities=QUANTITIES,
    )
    return Frontier(table, frontier_shapes.build(loaded.shapes, profile))


def _ceilings(frame: pd.DataFrame, bounds: LawResults[BoundRow]) -> pd.DataFrame:
    """Rows of the quantity "ceiling" for every cell of the frame; NaN where its tree has none (other draws)."""
    keys = [name for name in LABELS if name != "verifier"]
    found = {
        tuple(cell[key] for key in keys): _ceiling(bounds.rows[cell["cell_id"]])
        for cell in bounds.cells.to_dict("records")
        if cell["cell_id"] in bounds.rows
    }
    rows = frame[frame.quantity == "accepted_length"].copy()
    ceilings = [
        found.get(tuple(row[key] for key in keys), Interval(np.nan, np.nan, np.nan))
        for row in rows.to_dict("records")
    ]
    return rows.assign(
        quantity="ceiling", **{name: [getattr(one, name) for one in ceilings] for name in vars(ceilings[0])}
    )


def _ceiling(rows: Sequence[BoundRow]) -> Interval:
    trees, rollouts = (
        [getattr(row, name) for row in rows] for name in ("tree_log_ratios", "rollout_log_ratios")
    )
    return bound(in_halves(rollouts), in_halves(trees))


def _longer(cells: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The verdicts of the longer audits, in one note."""
    found = [f"{_title(cell)}: {audits.text(cell)}" for cell in cells]
    return ("Longer audits: " + "; ".join(found) + ".",) if found else ()


def _title(cell: Mapping[str, Any]) -> str:
    words = (labels.text(key, cell[key]) for key in ("dataset", "tree"))
    return (
        f"{', '.join(words)}, T = {cell['temperature']:g}, {labels.method(cell['decoder'], cell['verifier'])}"
    )


def publish(made: Frontier, folder: Path) -> tuple[str, list[Path]]:
    """Write the tables' files and the figure; return the main table as Markdown, and the paths."""
    text, paths = report.markdown(made.table), report.write(made.table, folder)
    _, others = law_report.publish(made.shapes, folder)
    return text, [*paths, *others, *save_figure(draw(made.table.frame), folder / made.table.stem)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return run("frontier", build, arguments, read=read, publish=publish)


if __name__ == "__main__":
    sys.exit(main())
