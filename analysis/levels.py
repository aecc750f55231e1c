"""Levels: deciding whole levels at once, beside deciding from the leaves up and SpecInfer."""

from collections.abc import Mapping
from typing import Any

from analysis import metrics
from analysis.artefact import Artefact, footer, run, texts
from analysis.load import Plan, load
from analysis.metric_table import baseline_of, by_cell, definitions, measure, with_gain

TEXTS = texts("levels")
OVER_TRAVERSAL = metrics.Metric(
    "gain_over_traversal",
    "Over traversal",
    "accepted length over that of traversal with optimal weights on the tree of the same name, on "
    "the same prompts",
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

    def traversal(cell: Mapping[str, Any]) -> Mapping[str, Any]:
        """The baseline of `level_optimal`; every other verifier is its own, and has no gain."""
        is_level = cell["verifier"] == "level_optimal"
        return {"verifier": "traversal_optimal" if is_level else cell["verifier"]}

    frame = measure(results, baseline_of(plan))
    frame = with_gain(frame, results, OVER_TRAVERSAL, traversal)
    notes = footer(results, plan, TEXTS["about"], definitions(COLUMNS, results))
    return Artefact((by_cell("levels", results, frame, TEXTS["caption"], notes, COLUMNS),))


if __name__ == "__main__":
    raise SystemExit(run("levels", make))
