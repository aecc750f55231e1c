"""Levels: what deciding whole levels at once emits, beside deciding from the leaves up and SpecInfer.

Usage: python -m analysis.levels --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pandas as pd

from analysis import decoded, metrics, script
from analysis.load import Plan, Results, load
from analysis.metrics import Metric
from analysis.report import footer
from analysis.stats import ABSENT, Interval

REFERENCE = {"decoder": "specinfer", "tree": "d5b3"}
FROM_THE_LEAVES, BY_LEVELS = "traversal_optimal", "level_optimal"
OVER_TRAVERSAL = Metric(
    "gain_over_traversal",
    "Over traversal",
    "accepted length over that of traversal with optimal weights on its own best tree, on the same prompts",
    **metrics.TOKENS,
)
COLUMNS = (metrics.ACCEPTED_LENGTH, metrics.GAIN, OVER_TRAVERSAL, metrics.TOKENS_PER_S, metrics.SPEEDUP)
CAPTION = "Deciding whole levels at once, {} profile: 121 verified positions, i.i.d. draws."
NOTES = (
    "Gain and Speedup: the baseline is SpecInfer's standard rule on d5b3 with the same prompts. best of 121: "
    "the tree that was searched for with traversal, optimal weights, on documents that are not measured.",
)


def make(plan: Plan) -> script.Artefact:
    """The table of the plan's cells."""
    results = load(plan, metrics.fields())
    frame = decoded.measure(results, baseline=lambda _: REFERENCE)
    frame = pd.concat([frame, _over_traversal(frame, results)], ignore_index=True) if len(frame) else frame
    notes = (*NOTES, *footer(results, plan, *decoded.definitions(COLUMNS, results)))
    words = (CAPTION.format(plan.profile), notes)
    return script.Artefact((decoded.table("levels", results, frame, words, COLUMNS),))


def _over_traversal(frame: pd.DataFrame, results: Results) -> pd.DataFrame:
    """Rows of `OVER_TRAVERSAL` for every cell of the frame; NaN but where levels are decided on its tree."""
    rows = frame[frame.quantity == metrics.ACCEPTED_LENGTH.name]
    keys = [name for name in results.keys if name != "verifier"]
    others = rows[rows.verifier == FROM_THE_LEAVES].set_index(keys).cell_id

    def gain(row: dict[str, str]) -> Interval:
        other = others.get(tuple(row[key] for key in keys)) if row["verifier"] == BY_LEVELS else None
        own, baseline = results.rows.get(row["cell_id"]), results.rows.get(other or "")
        return ABSENT if own is None or baseline is None else OVER_TRAVERSAL.of(own, baseline)

    found = pd.DataFrame([vars(gain(row)) for row in rows.to_dict("records")], index=rows.index)
    return rows.assign(quantity=OVER_TRAVERSAL.name, **found)


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("levels", make, arguments)


if __name__ == "__main__":
    sys.exit(main())
