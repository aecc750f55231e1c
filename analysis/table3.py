"""Table 3: trees of about equal verification cost, the paper's figures, and an exact verifier."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import labels, long, metrics
from analysis.artefact import Artefact, footer, paper, run, texts
from analysis.load import Plan, load
from analysis.metric_table import definitions, measure, side_by_side, with_column, with_figures
from analysis.table import ABSENT

TEXTS = texts("table3")
EXACT = "traversal_optimal"
COLUMNS = (
    (metrics.TOKENS_PER_S, "resispec", "ResiSpec tokens/s"),
    (metrics.TOKENS_PER_S, "standard", "SpecInfer tokens/s"),
    (metrics.SPEEDUP, "resispec", "ResiSpec speedup"),
    (metrics.ACCEPTED_LENGTH, "resispec", "ResiSpec accepted length"),
    (metrics.ACCEPTED_LENGTH, "standard", "SpecInfer accepted length"),
    (metrics.GAIN, "resispec", "ResiSpec gain"),
    (metrics.TOKENS_PER_S, EXACT, "Exact tokens/s"),
    (metrics.SPEEDUP, EXACT, "Exact speedup"),
    (metrics.ACCEPTED_LENGTH, EXACT, "Exact accepted length"),
    (metrics.GAIN, EXACT, "Exact gain"),
)
PAPER_COLUMNS = {
    ("resispec", "tokens_per_s"): "resispec_tokens_per_s",
    ("standard", "tokens_per_s"): "specinfer_tokens_per_s",
    ("resispec", "speedup"): "speedup",
}


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells; every tree has a line."""
    results = load(plan, metrics.FIELDS)
    figures = paper("table3")

    def rows(row: Mapping[str, Any]) -> pd.DataFrame:
        """The paper's row of the same tree."""
        is_papers = row["decoder"] == "specinfer" and row["temperature"] == 1.0
        return figures[(figures.tree == str(row["tree"])) & is_papers]

    frame = with_figures(measure(results), PAPER_COLUMNS, rows)
    varying, fixed = long.split_keys(with_column(frame, COLUMNS), (*results.setting, "decoder"))
    cost = long.named(
        "tree", "Verification cost", lambda row: str(labels.num_nodes(row["tree"]) or ABSENT)
    )
    notes = footer(results, plan, TEXTS["about"], definitions(metrics.METRICS, results))
    keys = [*long.names([*varying, "tree"]), cost]
    return Artefact(
        (side_by_side("table3", frame, keys, COLUMNS, TEXTS["caption"] + fixed, notes),)
    )


if __name__ == "__main__":
    raise SystemExit(run("table3", make))
