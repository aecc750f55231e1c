"""Table 5: expected accepted length against the number of candidates, in both arrangements of N candidates.

Usage: python -m analysis.table5 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels, paper, script
from analysis.figures import CEILING
from analysis.load import SETTING, Plan, Results, load
from analysis.published import Compared
from analysis.report import Table, footer, key_texts, split_keys
from analysis.scaling import FIELDS, QUANTITIES, VIEWS, Curve, ceiling_curve, curve, differences
from analysis.stats import BRACKETS, LEVEL

ARRANGEMENTS = {"complete": "complete trees", "chains": "parallel chains"}
PRINTED = {
    "expected_accepted_length": ("EAL", ".2f"),
    "marginal_gain": ("Marginal gain", ".2f"),
    "efficiency": ("Efficiency", ".3f"),
}
NAMED = ("Arrangement", "Method", "N", "Nodes")
DEFINITIONS = (
    "EAL: expected tokens a step, the final one included, from the laws of drafted trees of four levels "
    "counting the root: at most 4. Marginal gain: EAL over that of the row before. Efficiency: marginal "
    "gain per additional candidate.",
    "The paper does not say what N candidates at depth 4 are. Complete trees: N i.i.d. children at every "
    "node, so 1 + N + N^2 + N^3 positions are verified. Parallel chains: N i.i.d. paths that branch at the "
    "root only, 1 + 3N positions. With N = 1 both are one chain. All topologies are parts of the same "
    "drafted trees, so gains are paired.",
    "Ceiling: no exact verifier emits more (a bound over whole paths, 1 + sum over levels of A_l; brackets: "
    "1.96 standard errors, prefixes counted as independent). It need not be attained, and its gains are "
    "differences of bounds. A row whose interval lies above its ceiling's (ResiSpec's) shows "
    "that the output law is not the target's.",
)
ASKED = (
    "Which arrangement is closer to the published form? Root mean square differences of the standard rule's "
    "curve from the published one."
)
FORMS = {
    "growth": "EAL over that of N = 1, which leaves out how far the models agree",
    "gain shares": "Marginal gains over their sum, which leave out how much is gained",
    "level": "EAL itself, which other models shift",
}
CONSISTENT = (
    "The paper's own tables point to complete trees: Table 1 has 2.51 for a complete tree of 121 positions "
    "on the same target and data, next to 2.48 here for N = 4, which is 85 positions as a complete tree and "
    "13 as chains."
)
SAME_SETTING = (
    "(paper): the paper's figures, whose method is not named; they stand beside the standard rule of both "
    "arrangements."
)
OTHER_SETTING = (
    SAME_SETTING[:-1] + ": Llama-2-7B + 68M on CNN/DM, other models and other text, given for their form."
)


@dataclass(frozen=True)
class Line:
    """One method in one arrangement at one setting; `curve` is None where its cell is not done."""

    cell: dict[str, Any]
    verifier: str
    arrangement: str
    curve: Curve | None


def make(plan: Plan) -> script.Artefact:
    """The table of the plan's cells; a cell that is not done has a row that says so."""
    results = load(plan, FIELDS)
    figures = paper.read("table5", ("num_candidates", *QUANTITIES)).set_index("num_candidates")
    settings = [group for _, group in results.cells.groupby([*SETTING, *results.more], sort=False)]
    lines = [line for cells in settings for line in _lines(cells, results)]
    varying, fixed = split_keys(results.cells, (*SETTING, *results.more))
    header = [labels.header(key) for key in varying] + list(NAMED)
    header += [name for title, _ in PRINTED.values() for name in (title, f"{title} (paper)")]
    shown = [row for line in lines for row in _shown(line, varying, figures)]
    is_same = set(results.cells.pair) == {"llama2_7b__jf68m"} and set(results.cells.dataset) == {"cnn_dm"}
    forms = [note for cells in settings for note in _form(cells, results, figures)]
    table = Table(
        stem="table5",
        frame=pd.DataFrame([record for line in lines for record in _records(line, results, figures)]),
        shown=pd.DataFrame(shown, columns=header),
        num_keys=len(varying) + len(NAMED),
        caption=f"Table 5 of the paper, {plan.profile} profile: what more candidates gain.{fixed}",
        notes=(
            *DEFINITIONS,
            SAME_SETTING if is_same else OTHER_SETTING,
            *forms,
            *footer(results, plan, BRACKETS),
        ),
    )
    keys = ("arrangement", "num_candidates")
    return script.Artefact((table,), compared=Compared(QUANTITIES[0], "expected accepted lengths", keys))


def _lines(cells: pd.DataFrame, results: Results) -> Iterator[Line]:
    """The lines of one setting; the ceiling is that of its first finished cell: all have the same trees."""
    every = cells.to_dict("records")
    for arrangement in ARRANGEMENTS:
        for cell in every:
            rows = results.rows.get(cell["cell_id"])
            found = None if rows is None else curve(rows, arrangement)
            yield Line(cell, cell["verifier"], arrangement, found)
        for cell in [cell for cell in every if cell["status"] == "done"][:1]:
            yield Line(cell, CEILING, arrangement, ceiling_curve(results.rows[cell["cell_id"]], arrangement))


def _records(line: Line, results: Results, figures: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Rows of the CSV."""
    shared = {name: line.cell[name] for name in ("cell_id", *SETTING, *results.more)}
    shared |= {"verifier": line.verifier, "status": line.cell["status"], "reason": line.cell["reason"]}
    shared |= {
        "num_prompts": len(results.rows.get(line.cell["cell_id"], ())),
        "arrangement": line.arrangement,
    }
    empty = dict.fromkeys(("num_candidates", "num_nodes", "quantity", "value", "lower", "upper", "paper"))
    if line.curve is None:
        yield shared | empty
        return
    for point in line.curve:
        for quantity in QUANTITIES:
            found = {
                "num_candidates": point.num_candidates,
                "num_nodes": point.num_nodes,
                "quantity": quantity,
            }
            figure = _figure(line, figures, point.num_candidates, quantity)
            yield shared | found | vars(getattr(point, quantity)) | {"paper": figure}


def _shown(line: Line, varying: Sequence[str], figures: pd.DataFrame) -> Iterator[list[str]]:
    """Printed rows."""
    keys = key_texts(line.cell, varying)
    keys += [ARRANGEMENTS[line.arrangement], labels.name("verifier", line.verifier)]
    if line.curve is None:
        absent = [labels.ABSENT] * (2 * len(PRINTED) - 1)
        yield [*keys, labels.ABSENT, labels.ABSENT, labels.gap(line.cell), *absent]
        return
    for point in line.curve:
        row = [*keys, str(point.num_candidates), str(point.num_nodes)]
        for quantity, (_, spec) in PRINTED.items():
            row.append(labels.interval(getattr(point, quantity), spec))
            row.append(labels.number(_figure(line, figures, point.num_candidates, quantity), spec))
        yield row


def _figure(line: Line, figures: pd.DataFrame, num_candidates: int, quantity: str) -> float:
    """The paper's figure; NaN for other methods than the standard rule and other N."""
    if line.verifier != "standard" or num_candidates not in figures.index:
        return np.nan
    return float(figures.loc[num_candidates, quantity])


def _form(cells: pd.DataFrame, results: Results, figures: pd.DataFrame) -> Iterator[str]:
    """Which arrangement's form is closer to the paper's, where the standard rule's cell has the paper's N."""
    lengths = figures.expected_accepted_length
    for cell_id in cells.cell_id[(cells.status == "done") & (cells.verifier == "standard")]:
        rows = results.rows[cell_id]
        if sorted(set(rows.num_candidates.iloc[0])) != lengths.index.tolist():
            continue
        found = {name: differences(rows, name, lengths.to_numpy()) for name in ARRANGEMENTS}
        sentences = []
        for view in VIEWS:
            closer, other = sorted(ARRANGEMENTS, key=lambda name: found[name][view].value)
            drawn = (found[name][view].resampled for name in (closer, other))
            share = float(np.mean(np.less(*drawn))) if len(rows) > 1 else np.nan
            values = " and ".join(
                f"{labels.number(found[name][view].value, '.3f')} for {ARRANGEMENTS[name]}"
                for name in (closer, other)
            )
            order = f"the same order in {labels.number(share, '.0%')} of the resamples"
            undecided = "" if share >= LEVEL else ", so undecided"
            sentences.append(f"{FORMS[view]}: {values} ({order}{undecided}).")
        yield " ".join((ASKED, *sentences, CONSISTENT))


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("table5", make, arguments)


if __name__ == "__main__":
    sys.exit(main())
