"""The frontier's table: what every exact verifier emits, on d5b3 and on searched trees, and the ceilings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import audits, decoded, labels, metrics, script
from analysis.frontier import figure, shapes, summary
from analysis.load import LABELS, Plan, Results, load
from analysis.metrics import METRICS, Metric
from analysis.report import footer
from analysis.scaling import bound, in_halves
from analysis.stats import ABSENT, Interval

BOUND, LONG = "bound", "long"
"""Parts of the artefact that do not give rows: cells that measure ceilings, and audits of more prompts."""
BOUND_FIELDS = ("tree_log_ratios", "rollout_log_ratios")
REFERENCE = {"decoder": "specinfer", "tree": "d5b3"}
PICTURE = "![Accepted length of exact verifiers](frontier.png)"
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


def make(plan: Plan) -> script.Artefact:
    """The table of what was decoded, its summary, the table of searched trees, and the figure."""
    results = load(plan.parts(lambda part: part not in (BOUND, LONG)), metrics.fields())
    longer = load(plan.parts(lambda part: part == LONG), ())
    bounds = load(plan.parts(lambda part: part == BOUND), BOUND_FIELDS)
    frame = decoded.measure(results, baseline=lambda _: REFERENCE)
    frame = pd.concat([frame, _ceilings(frame, bounds)], ignore_index=True) if len(frame) else frame
    found = shapes.read(plan)
    notes = (
        *(PICTURE, BIASED, COMPARED, DRAWS, *shapes.by_cost(found), *_longer(longer)),
        *footer(results, plan, *decoded.definitions(COLUMNS, results)),
    )
    caption = f"The frontier of exact verification, {plan.profile} profile."
    table = decoded.table("frontier", results, frame, (caption, notes), COLUMNS)
    tables = (table, summary.table(frame, plan), shapes.table(found, plan))
    return script.Artefact(tables, {"frontier": figure.draw(frame)})


def _ceilings(frame: pd.DataFrame, bounds: Results) -> pd.DataFrame:
    """Rows of the quantity "ceiling" for every cell of the frame; NaN where its tree has none."""
    keys = [name for name in LABELS if name != "verifier"]
    keys += [name for name in bounds.more if name in frame]
    found = {
        tuple(cell[key] for key in keys): _ceiling(bounds.rows[cell["cell_id"]])
        for cell in bounds.cells.to_dict("records")
        if cell["cell_id"] in bounds.rows
    }
    rows = frame[frame.quantity == metrics.ACCEPTED_LENGTH.name]
    ceilings = [found.get(tuple(row[key] for key in keys), ABSENT) for row in rows.to_dict("records")]
    numbers = pd.DataFrame([vars(one) for one in ceilings], index=rows.index)
    return rows.assign(quantity=CEILING.name, **numbers)


def _ceiling(rows: pd.DataFrame) -> Interval:
    return bound(in_halves(rows.rollout_log_ratios), in_halves(rows.tree_log_ratios))


def _longer(longer: Results) -> tuple[str, ...]:
    """The verdicts of the longer audits, in one note."""
    said = []
    for cell in longer.cells.to_dict("records"):
        found = {"audited_tokens": np.nan, "verdict": f"audit {cell['status']}"}
        if cell["status"] == "done":
            found = audits.judged(cell["cell_id"], longer.rows[cell["cell_id"]])
        said.append(f"{_title(cell)}: {audits.text(found)}")
    return ("Longer audits: " + "; ".join(said) + ".",) if said else ()


def _title(cell: Mapping[str, Any]) -> str:
    words = (labels.text(key, cell[key]) for key in ("dataset", "tree"))
    method = labels.method(cell["decoder"], cell["verifier"])
    return f"{', '.join(words)}, T = {cell['temperature']:g}, {method}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("frontier", make, arguments)
