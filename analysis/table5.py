"""Table 5: expected accepted length against the number of candidates, in both readings of what N candidates are.

Usage: python -m analysis.table5 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels, paper
from analysis.bootstrap import LEVEL
from analysis.law_load import SETTING, LawResults, load_rows
from analysis.law_report import LawTable, bracketed, footer, gap, number, publish
from analysis.scaling import QUANTITIES, VIEWS, Curve, ceiling_curve, curve, differences
from analysis.script import run
from resispec.law_rows import ScalingRow

READINGS = {"complete": "complete trees", "chains": "parallel chains"}
CEILING = "ceiling"
COLUMNS = [
    "cell_id", *SETTING, "verifier", "status", "reason", "num_prompts", "reading", "num_candidates", "num_nodes", "quantity",
    "value", "lower", "upper", "paper",
]  # fmt: skip
HEADERS = {
    "pair": "Pair", "dataset": "Data set", "temperature": "T", "reading": "Reading", "method": "Method", "num_candidates": "N",
    "num_nodes": "Nodes",
}  # fmt: skip
PRINTED = {
    "expected_accepted_length": ("EAL", ".2f"),
    "marginal_gain": ("Marginal gain", ".2f"),
    "efficiency": ("Efficiency", ".3f"),
}
DEFINITIONS = (
    "EAL: expected tokens a step, the final one included, from the laws of drafted trees of four levels counting the root: at "
    "most 4. Marginal gain: EAL over that of the row before. Efficiency: marginal gain per additional candidate.",
    "The paper does not say what N candidates at depth 4 are. Complete trees: N i.i.d. children at every node, so 1 + N + "
    "N^2 + N^3 positions are verified. Parallel chains: N i.i.d. paths that branch at the root only, 1 + 3N positions. With "
    "N = 1 both are one chain. All shapes are parts of the same drafted trees, so gains are paired.",
    "Ceiling: no exact verifier emits more (a bound over whole paths, 1 + sum over levels of A_l; brackets: 1.96 standard "
    "errors, contexts counted as independent). It need not be attained, and its gains are differences of bounds. An EAL above "
    "its ceiling proves that the output law is not the target's: ResiSpec's rows are those of a biased rule.",
)
ASKED = (
    "Which reading is closer to the published form? Root mean square differences of the standard rule's curve from the "
    "published one."
)
FORMS = {
    "growth": "EAL over that of N = 1, which leaves out how far the models agree",
    "gain shares": "Marginal gains over their sum, which leave out how much is gained",
    "level": "EAL itself, which other models shift",
}
CONSISTENT = (
    "The paper's own tables point to complete trees: Table 1 has 2.51 for a complete tree of 121 positions on the same target "
    "and data, next to 2.48 here for N = 4, which is 85 positions as a complete tree and 13 as chains."
)
SAME_SETTING = "(paper): the published figures, whose method is not named; they stand beside the standard rule of both readings."
OTHER_SETTING = (
    SAME_SETTING[:-1] + ": Llama-2-7B + 68M on CNN/DM, other models and other text, given for their form."
)


@dataclass(frozen=True)
class Line:
    """One method in one reading at one setting, with a number for every N; `curve` is None where its cell is not done."""

    cell: dict[str, Any]
    method: str
    reading: str
    curve: Curve | None


def build(results: LawResults[ScalingRow], profile: str, command: str) -> LawTable:
    """The table of the loaded cells; a cell that is not done has a row that says so."""
    published = paper.read("table5", ("num_candidates", *QUANTITIES)).set_index("num_candidates")
    lines = [
        line
        for _, cells in results.cells.groupby(list(SETTING), sort=False)
        for line in _lines(cells, results)
    ]
    records = [record for line in lines for record in _records(line, results, published)]
    shown = pd.DataFrame([row for line in lines for row in _shown(line, published)])
    constant = [key for key in SETTING if len(set(results.cells[key])) == 1]
    settings = ", ".join(
        f"{HEADERS[key]}: {labels.text(key, results.cells[key].iloc[0])}" for key in constant
    )
    keys = [key for key in HEADERS if key not in constant]
    header = [*keys, *(column for column in shown.columns if column not in HEADERS)]
    same = set(results.cells.pair) == {"llama2_7b__jf68m"} and set(results.cells.dataset) == {"cnn_dm"}
    forms = [
        note
        for _, cells in results.cells.groupby(list(SETTING), sort=False)
        for note in _form(cells, results, published)
    ]
    return LawTable(
        stem="table5",
        frame=pd.DataFrame(records, columns=COLUMNS),
        shown=shown[header].rename(columns=HEADERS),
        num_keys=len(keys),
        caption=f"Table 5 of the paper, {profile} profile: what more candidates gain. {settings}.",
        notes=(
            *DEFINITIONS,
            SAME_SETTING if same else OTHER_SETTING,
            *forms,
            *footer(results, profile, command),
        ),
    )


def _lines(cells: pd.DataFrame, results: LawResults[ScalingRow]) -> Iterator[Line]:
    """The lines of one setting; the ceiling is that of its first finished cell, whose trees the others share."""
    every = cells.to_dict("records")
    done = [cell for cell in every if cell["status"] == "done"]
    for reading in READINGS:
        for cell in every:
            rows = results.rows.get(cell["cell_id"])
            yield Line(
                cell,
                labels.name("verifier", cell["verifier"]),
                reading,
                curve(rows, reading) if rows else None,
            )
        for cell in done[:1]:
            yield Line(cell, CEILING, reading, ceiling_curve(results.rows[cell["cell_id"]], reading))


def _records(
    line: Line, results: LawResults[ScalingRow], published: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """Rows of the CSV."""
    shared = {key: line.cell[key] for key in ("cell_id", *SETTING, "status", "reason")} | {
        "reading": line.reading
    }
    shared |= {"verifier": CEILING if line.method == CEILING else line.cell["verifier"]}
    shared["num_prompts"] = len(results.rows.get(line.cell["cell_id"], ()))
    if line.curve is None:
        yield shared
        return
    for point in line.curve:
        for quantity in QUANTITIES:
            figure = _figure(line, published, point.num_candidates, quantity)
            size = {"num_candidates": point.num_candidates, "num_nodes": point.num_nodes}
            yield shared | size | {"quantity": quantity, **vars(getattr(point, quantity)), "paper": figure}


def _shown(line: Line, published: pd.DataFrame) -> Iterator[dict[str, str]]:
    """Printed rows."""
    keys = {key: labels.text(key, line.cell[key]) for key in SETTING}
    keys |= {"reading": READINGS[line.reading], "method": line.method}
    if line.curve is None:
        numbers = [column for header, _ in PRINTED.values() for column in (header, f"{header} (paper)")]
        yield (
            keys
            | {"num_candidates": labels.ABSENT, "num_nodes": labels.ABSENT}
            | dict.fromkeys(numbers, labels.ABSENT)
            | {numbers[0]: gap(line.cell)}
        )
        return
    for point in line.curve:
        row = keys | {"num_candidates": str(point.num_candidates), "num_nodes": str(point.num_nodes)}
        for quantity, (header, spec) in PRINTED.items():
            row[header] = bracketed(getattr(point, quantity), spec)
            row[f"{header} (paper)"] = number(_figure(line, published, point.num_candidates, quantity), spec)
        yield row


def _figure(line: Line, published: pd.DataFrame, num_candidates: int, quantity: str) -> float:
    """The published figure; NaN for other methods than the standard rule and other N."""
    if line.method == CEILING or line.cell["verifier"] != "standard" or num_candidates not in published.index:
        return np.nan
    return float(published.loc[num_candidates, quantity])


def _form(cells: pd.DataFrame, results: LawResults[ScalingRow], published: pd.DataFrame) -> Iterator[str]:
    """Which reading's form is closer to the published one, where the standard rule's cell is done and has the paper's N."""
    lengths = published.expected_accepted_length
    for cell in cells[(cells.status == "done") & (cells.verifier == "standard")].to_dict("records"):
        rows = results.rows[cell["cell_id"]]
        if sorted(set(rows[0].num_candidates)) != lengths.index.tolist():
            continue
        found = {reading: differences(rows, reading, lengths.to_numpy()) for reading in READINGS}
        sentences = []
        for view in VIEWS:
            closer, other = sorted(READINGS, key=lambda reading: found[reading][view].value)
            share = (
                np.mean(found[closer][view].resampled < found[other][view].resampled)
                if len(rows) > 1
                else np.nan
            )
            values = " and ".join(
                f"{found[reading][view].value:.3f} for {READINGS[reading]}" for reading in (closer, other)
            )
            order = f"the same order in {number(float(share), '.0%')} of the resamples"
            sentences.append(
                f"{FORMS[view]}: {values} ({order}{'' if share >= LEVEL else ', so undecided'})."
            )
        yield " ".join((ASKED, *sentences, CONSISTENT))


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return run("table5", build, arguments, read=partial(load_rows, row_type=ScalingRow), publish=publish)


if __name__ == "__main__":
    sys.exit(main())
