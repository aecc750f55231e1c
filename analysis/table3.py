"""Table 3: trees of about equal verification cost, beside the paper's figures and an exact verifier's.

Usage: python -m analysis.table3 --profile embedded
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import decoded, labels, metrics, paper, script
from analysis.load import Plan, load
from analysis.report import footer, split_keys
from analysis.side_by_side import Column, key, shown_cells, table, with_paper
from resispec.trees import complete

EXACT = "traversal_optimal"
COLUMNS = (
    Column("resispec", metrics.TOKENS_PER_S, "ResiSpec tokens/s"),
    Column("standard", metrics.TOKENS_PER_S, "SpecInfer tokens/s"),
    Column("resispec", metrics.SPEEDUP, "ResiSpec speedup"),
    Column("resispec", metrics.ACCEPTED_LENGTH, "ResiSpec accepted length"),
    Column("standard", metrics.ACCEPTED_LENGTH, "SpecInfer accepted length"),
    Column("resispec", metrics.GAIN, "ResiSpec gain"),
    Column(EXACT, metrics.TOKENS_PER_S, "Exact tokens/s"),
    Column(EXACT, metrics.SPEEDUP, "Exact speedup"),
    Column(EXACT, metrics.ACCEPTED_LENGTH, "Exact accepted length"),
    Column(EXACT, metrics.GAIN, "Exact gain"),
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


def make(plan: Plan) -> script.Artefact:
    """The table of the plan's cells; every tree has a line."""
    results = load(plan, metrics.fields())
    figures = paper.read("table3", ("tree", "verification_cost", *PAPER_COLUMNS.values()))
    frame = with_paper(decoded.measure(results), lambda row: _paper(row, figures))
    varying, fixed = split_keys(
        shown_cells(results, COLUMNS), ("pair", "temperature", "dataset", *results.more, "decoder")
    )
    keys = {labels.header(name): key(name) for name in (*varying, "tree")}
    notes = (*NOTES, *footer(results, plan, *decoded.definitions(metrics.METRICS, results)))
    words = (f"{CAPTION.format(plan.profile)}{fixed}", notes)
    return script.Artefact((table("table3", frame, keys | {"Verification cost": _cost}, COLUMNS, words),))


def _cost(row: Mapping[str, Any]) -> str:
    """The nodes of a complete tree that is named by its depth and branching; "–" for another one."""
    found = re.fullmatch(r"d(\d+)b(\d+)", row["tree"])
    return str(complete(int(found[1]), int(found[2])).num_nodes) if found else labels.ABSENT


def _paper(row: Mapping[str, Any], figures: pd.DataFrame) -> tuple[float, float]:
    """The paper's figure for the same tree, twice."""
    column = PAPER_COLUMNS.get((row["verifier"], row["quantity"]))
    found = figures[figures.tree == row["tree"]]
    if column is None or found.empty or row["temperature"] != 1.0:
        return float("nan"), float("nan")
    return float(found[column].iloc[0]), float(found[column].iloc[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("table3", make, arguments)


if __name__ == "__main__":
    sys.exit(main())
