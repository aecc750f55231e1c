"""Levels: deciding whole levels at once, compared with deciding from the leaves up
and with SpecInfer.
"""

from collections.abc import Mapping
from typing import Any

from analysis import metrics
from analysis.artefact import Artefact, footer, run, texts
from analysis.load import Plan, load
from analysis.metric_table import by_cell, definitions, measure, specinfer_on_d5b3, with_quantity
from analysis.stats import ABSENT, Interval

TEXTS = texts("levels")
OVER_TRAVERSAL = metrics.Metric(
    "gain_over_traversal",
    "Over traversal",
    "accepted length over that of traversal with optimal weights on its own best tree, on the same "
    "prompts",
    **metrics.TOKENS,
)
COLUMNS = (
    metrics.ACCEPTED_LENGTH,
    metrics.GAIN,
    OVER_TRAVERSAL,
    metrics.TOKENS_PER_S,
    metrics.SPEEDUP,
)


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells."""
    results = load(plan, metrics.FIELDS)
    cell_ids = {results.place(cell): cell["cell_id"] for cell in results.timed.to_dict("records")}

    def gain(row: Mapping[str, Any]) -> Interval:
        """The gain of `level_optimal` over `traversal_optimal` on the same tree;
        NaN for other verifiers.
        """
        prompts = results.rows.get(row["cell_id"])
        baseline = results.rows.get(
            cell_ids.get(results.place({**row, "verifier": "traversal_optimal"}), "")
        )
        has_both = (
            row["verifier"] == "level_optimal" and prompts is not None and baseline is not None
        )
        return OVER_TRAVERSAL.of(prompts, baseline) if has_both else ABSENT

    frame = with_quantity(measure(results, specinfer_on_d5b3), OVER_TRAVERSAL.name, gain)
    notes = footer(results, plan, TEXTS["about"], definitions(COLUMNS, results))
    return Artefact((by_cell("levels", results, frame, TEXTS["caption"], notes, COLUMNS),))


if __name__ == "__main__":
    raise SystemExit(run("levels", make))
