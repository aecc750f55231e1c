"""Table 5: expected accepted length against the number of candidates, in both arrangements of N candidates.

Usage: python -m analysis.table5 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels
from analysis.artefact import Artefact, command, footer, key_cells, key_columns, paper, split_keys
from analysis.load import SETTING, Plan, Results, load
from analysis.metric_table import CEILING
from analysis.published import Compared
from analysis.scaling import FIELDS, QUANTITIES, VIEWS, Curve, ceiling_curve, curve, differences
from analysis.stats import BRACKETS, LEVEL
from analysis.table import ABSENT, Cell, Column, Gap, Key, Number, Paper, Table, Text, number

ARRANGEMENTS = {"complete": "complete trees", "chains": "parallel chains"}
PRINTED = {
    "expected_accepted_length": ("EAL", ".2f"),
    "marginal_gain": ("Marginal gain", ".2f"),
    "efficiency": ("Efficiency", ".3f"),
}
NAMED = {"arrangement": "Arrangement", "verifier": "Method", "num_candidates": "N", "num_nodes": "Nodes"}
ABOUT = ("cell_id", *SETTING, "verifier", "status", "reason", "num_prompts", "arrangement")
VARIED = ("num_candidates", "num_nodes", "quantity", "value", "lower", "upper", "paper")
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
    "differences of bounds. A row whose interval lies above its ceiling's shows that the output law is not "
    "the target's.",
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


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells; a cell that is not done has a row that says so."""
    results = load(plan, FIELDS)
    figures = paper("table5", ("num_candidates", *QUANTITIES)).set_index("num_candidates")
    settings = [group for _, group in results.cells.groupby([*SETTING, *results.more], sort=False)]
    varying, fixed = split_keys(results.cells, (*SETTING, *results.more))
    records: list[dict[str, Any]] = []
    rows: list[tuple[Cell, ...]] = []
    for cells in settings:
        for cell, verifier, arrangement, points in _lines(cells, results):
            keys = (
                *key_cells(cell, varying),
                Key(arrangement, ARRANGEMENTS[arrangement]),
                Key(verifier, labels.name("verifier", verifier)),
            )
            about = {
                name: value for name, value in results.about(cell).items() if name in ABOUT + results.more
            }
            about |= {"verifier": verifier, "arrangement": arrangement}
            about = {name: about[name] for name in (*ABOUT[:4], *results.more, *ABOUT[4:])}
            if not points:
                records.append(about | dict.fromkeys(VARIED))
                gap = Gap(cell["status"], cell["reason"])
                rows.append(
                    (*keys, Key(None, ABSENT), Key(None, ABSENT), gap, *[Text()] * (2 * len(PRINTED) - 1))
                )
            for point in points:
                sizes = {"num_candidates": point.num_candidates, "num_nodes": point.num_nodes}
                is_paper = verifier == "standard" and point.num_candidates in figures.index
                numbers: list[Cell] = [Key(size, str(size)) for size in sizes.values()]
                for quantity, (_, spec) in PRINTED.items():
                    interval = getattr(point, quantity)
                    figure = float(figures.loc[point.num_candidates, quantity]) if is_paper else np.nan
                    records.append(
                        about | sizes | {"quantity": quantity} | vars(interval) | {"paper": figure}
                    )
                    numbers += [Number.of(interval, spec), Paper(figure, figure, spec)]
                rows.append((*keys, *numbers))
    columns = [
        *key_columns(varying),
        *(Column(key, header, "key") for key, header in NAMED.items()),
        *(
            Column(key, f"{title}{suffix}", kind)  # type: ignore[arg-type]
            for key, (title, _) in PRINTED.items()
            for kind, suffix in (("number", ""), ("paper", " (paper)"))
        ),
    ]
    frame = pd.DataFrame(records)
    is_same = set(results.cells.pair) == {"llama2_7b__jf68m"} and set(results.cells.dataset) == {"cnn_dm"}
    forms = [note for cells in settings for note in _form(cells, results, figures)]
    setting = SAME_SETTING if is_same else OTHER_SETTING
    about_all = (*DEFINITIONS, *beside_ceilings(frame, results.more), setting, *forms)
    caption = f"Table 5 of the paper, {plan.profile} profile: what more candidates gain.{fixed}"
    notes = footer(results, plan, about_all, [BRACKETS])
    table = Table("table5", tuple(columns), tuple(rows), caption, frame, notes)
    keys_compared = ("arrangement", "num_candidates")
    return Artefact((table,), compared=Compared(QUANTITIES[0], "expected accepted lengths", keys_compared))


def _lines(cells: pd.DataFrame, results: Results) -> Iterator[tuple[dict[str, Any], Any, str, Curve]]:
    """Cell, verifier, arrangement and curve of the lines of one setting; no curve where its cell is not done.

    The ceiling is that of its first finished cell: all have the same trees.
    """
    every = cells.to_dict("records")
    for arrangement in ARRANGEMENTS:
        for cell in every:
            rows = results.rows.get(cell["cell_id"])
            yield cell, cell["verifier"], arrangement, () if rows is None else curve(rows, arrangement)
        for cell in [cell for cell in every if cell["status"] == "done"][:1]:
            rows = results.rows[cell["cell_id"]]
            yield cell, CEILING, arrangement, ceiling_curve(rows, arrangement)


def beside_ceilings(frame: pd.DataFrame, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Counts of each rule's rows whose interval lies above or below its ceiling's, in one note.

    frame: of the table. more: labels beside SETTING. Without a ceiling there is no note.
    """
    lengths = frame[(frame.quantity == QUANTITIES[0]) & frame.lower.notna()]
    is_ceiling = lengths.verifier == CEILING
    keys = [*SETTING, *more, "arrangement", "num_candidates"]
    rows = lengths[~is_ceiling].merge(lengths[is_ceiling], on=keys, suffixes=("", "_ceiling"))
    counts = [
        f"{labels.name('verifier', verifier)} {(own.lower > own.upper_ceiling).sum()} of {len(own)} rows "
        f"above and {(own.upper < own.lower_ceiling).sum()} below"
        for verifier, own in rows.groupby("verifier", sort=False)
    ]
    return (f"Beside their ceilings, intervals apart: {', '.join(counts)}.",) if counts else ()


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
            closer, other = sorted(ARRANGEMENTS, key=lambda name: found[name][view][0])
            drawn = (found[name][view][1] for name in (closer, other))
            share = float(np.mean(np.less(*drawn))) if len(rows) > 1 else np.nan
            values = " and ".join(
                f"{number(found[name][view][0], '.3f')} for {ARRANGEMENTS[name]}" for name in (closer, other)
            )
            order = f"the same order in {number(share, '.0%')} of the resamples"
            undecided = "" if share >= LEVEL else ", so undecided"
            sentences.append(f"{FORMS[view]}: {values} ({order}{undecided}).")
        yield " ".join((ASKED, *sentences, CONSISTENT))


main = command("table5", make)


if __name__ == "__main__":
    sys.exit(main())
