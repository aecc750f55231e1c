"""Table 3: trees of about equal verification cost, beside the paper's figures and an exact verifier's.

Usage: python -m analysis.table3 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import labels, metrics
from analysis.artefact import Artefact, command, footer, paper, split_keys
from analysis.load import Plan, load
from analysis.metric_table import (
    Shown,
    definitions,
    figures_of,
    label_keys,
    measure,
    shown_cells,
    side_by_side,
)
from analysis.table import ABSENT, Column, Key

EXACT = "traversal_optimal"
COLUMNS = (
    Shown(metrics.TOKENS_PER_S, "resispec", "ResiSpec tokens/s"),
    Shown(metrics.TOKENS_PER_S, "standard", "SpecInfer tokens/s"),
    Shown(metrics.SPEEDUP, "resispec", "ResiSpec speedup"),
    Shown(metrics.ACCEPTED_LENGTH, "resispec", "ResiSpec accepted length"),
    Shown(metrics.ACCEPTED_LENGTH, "standard", "SpecInfer accepted length"),
    Shown(metrics.GAIN, "resispec", "ResiSpec gain"),
    Shown(metrics.TOKENS_PER_S, EXACT, "Exact tokens/s"),
    Shown(metrics.SPEEDUP, EXACT, "Exact speedup"),
    Shown(metrics.ACCEPTED_LENGTH, EXACT, "Exact accepted length"),
    Shown(metrics.GAIN, EXACT, "Exact gain"),
)
PAPER_COLUMNS = {
    ("resispec", "tokens_per_s"): "resispec_tokens_per_s",
    ("standard", "tokens_per_s"): "specinfer_tokens_per_s",
    ("resispec", "speedup"): "speedup",
}
CAPTION = "Table 3 of the paper, {} profile: trees of about equal verification cost."
NOTES = (
    "(paper): the paper's figures for Llama-2-7B + 68M on an RTX 3090, without accepted lengths. It names "
    "neither temperature nor data set; its 94.25 tokens/s on d5b3 is that of T = 1 in its Table 6 (94.0 to "
    "95.1; about 84.5 at T = 0.6).",
    "Exact: SpecInfer's draws on the same tree, verified from the leaves up with optimal weights (traversal, "
    "optimal weights). It and SpecInfer's standard rule keep the target's law; ResiSpec does not, as its "
    "audit shows, so that its speedup is not that of a lossless method.",
    "Verification cost: positions that one forward of the target verifies, the root counted.",
    "Gain and speedup: over SpecInfer's standard rule on the same tree.",
)


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells; every tree has a line."""
    results = load(plan, metrics.fields())
    figures = paper("table3", ("tree", "verification_cost", *PAPER_COLUMNS.values()))

    def rows_beside(row: Mapping[str, Any]) -> pd.DataFrame:
        """The paper's row of the same tree."""
        return figures[(figures.tree == str(row["tree"])) & (row["temperature"] == 1.0)]

    frame = measure(results, figure=figures_of(PAPER_COLUMNS, rows_beside))
    settings = ("pair", "temperature", "dataset", *results.more, "decoder")
    varying, fixed = split_keys(shown_cells(results, COLUMNS), settings)
    keys = label_keys([*varying, "tree"]) | {Column("num_nodes", "Verification cost", "key"): _cost}
    notes = footer(results, plan, NOTES, definitions(metrics.METRICS, results))
    caption = CAPTION.format(plan.profile) + fixed
    return Artefact((side_by_side("table3", frame, keys, COLUMNS, caption, notes),))


def _cost(row: Mapping[str, Any]) -> Key:
    nodes = labels.num_nodes(row["tree"])
    return Key(nodes, str(nodes or ABSENT))


main = command("table3", make)


if __name__ == "__main__":
    sys.exit(main())
