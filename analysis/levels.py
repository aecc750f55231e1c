"""Levels: what deciding whole levels at once emits, beside deciding from the leaves up and SpecInfer.

Usage: python -m analysis.levels --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from analysis import metrics
from analysis.artefact import Artefact, command, footer
from analysis.load import Plan, load
from analysis.metric_table import by_cell, definitions, measure, with_quantity
from analysis.metrics import Metric
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


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells."""
    results = load(plan, metrics.fields())
    frame = measure(results, baseline=lambda _: REFERENCE)
    keys = [name for name in results.keys if name != "verifier"]
    others = {
        tuple(cell[key] for key in keys): results.rows.get(cell["cell_id"])
        for cell in results.cells[~results.cells.is_audit].to_dict("records")
        if cell["verifier"] == FROM_THE_LEAVES
    }

    def gain(row: Mapping[str, Any]) -> Interval:
        """The gain where levels are decided on the tree of traversal."""
        own, baseline = results.rows.get(row["cell_id"]), others.get(tuple(row[key] for key in keys))
        has_both = row["verifier"] == BY_LEVELS and own is not None and baseline is not None
        return OVER_TRAVERSAL.of(own, baseline) if has_both else ABSENT

    frame = with_quantity(frame, OVER_TRAVERSAL.name, gain)
    notes = footer(results, plan, NOTES, definitions(COLUMNS, results))
    return Artefact((by_cell("levels", results, frame, CAPTION.format(plan.profile), notes, COLUMNS),))


main = command("levels", make)


if __name__ == "__main__":
    sys.exit(main())
