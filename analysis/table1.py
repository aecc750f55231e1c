"""Table 1: SpecInfer and ResiSpec on d5b3 beside the paper's figures, and the run's autoregressive baseline.

Usage: python -m analysis.table1 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import metrics
from analysis.artefact import Artefact, command, footer, paper
from analysis.load import Plan, load
from analysis.metric_table import by_cell, definitions, figures_of, measure

# (verifier, quantity) -> the column of results/reference/table1.csv that has it
PAPER_COLUMNS = {
    ("standard", "accepted_length"): "specinfer_accepted_length",
    ("standard", "tokens_per_s"): "specinfer_tokens_per_s",
    ("resispec", "accepted_length"): "resispec_accepted_length",
    ("resispec", "tokens_per_s"): "resispec_tokens_per_s",
    ("resispec", "accepted_length_gain"): "accepted_length_gain",
    ("resispec", "speedup"): "speedup",
}
SAME_SETTING = "(paper): the paper's figures for the same pair, data set and temperature, on an RTX 3090."
OTHER_SETTING = (
    "(paper): the paper's figures, for Llama-2-7B + 68M on an RTX 3090 on CNN/DM, OpenWebText and C4. Where "
    "a row has another pair or data set, it shows their range over the paper's three data sets at the same "
    "temperature: other models, other hardware and other text, given for orientation."
)
COMPARED = (
    "Gain and Speedup: the baseline is SpecInfer (standard) with the same pair, data set, temperature and "
    "tree."
)
CAPTION = "Table 1 of the paper, {} profile: accepted length and throughput of ResiSpec and SpecInfer."
BIASED = (
    "ResiSpec's rows are biased toward the draft: the law of their output is not the target's, as the "
    "audits show (see README). Their accepted length and speed are not those of a lossless method."
)


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells; every cell has a row."""
    results = load(plan, metrics.fields())
    figures = paper("table1", ("pair", "temperature", "dataset", "tree", *PAPER_COLUMNS.values()))

    def rows_beside(row: Mapping[str, Any]) -> pd.DataFrame:
        """The paper's row of the same setting, or those of all its data sets."""
        is_alike = (figures.temperature == row["temperature"]) & (figures.tree == str(row["tree"]))
        rows = figures[is_alike & (row["decoder"] == "specinfer")]
        exact = rows[(rows.pair == str(row["pair"])) & (rows.dataset == str(row["dataset"]))]
        return rows if exact.empty else exact

    frame = measure(results, figure=figures_of(PAPER_COLUMNS, rows_beside))
    settings = set(zip(figures.pair, figures.dataset, strict=True))
    is_same = set(zip(frame.pair, frame.dataset, strict=True)) <= settings
    is_biased = (frame.verifier == "resispec").any()
    about = [SAME_SETTING if is_same else OTHER_SETTING, COMPARED]
    notes = footer(
        results, plan, [BIASED, *about] if is_biased else about, definitions(metrics.METRICS, results)
    )
    return Artefact(
        (by_cell("table1", results, frame, CAPTION.format(plan.profile), notes, metrics.METRICS),)
    )


main = command("table1", make)


if __name__ == "__main__":
    sys.exit(main())
