"""Table 1: SpecInfer and ResiSpec on d5b3 beside the paper's figures, and the run's autoregressive baseline.

Usage: python -m analysis.table1 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis import decoded, metrics, paper, script
from analysis.load import Plan, load
from analysis.report import footer

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


def make(plan: Plan) -> script.Artefact:
    """The table of the plan's cells; every cell has a row."""
    results = load(plan, metrics.fields())
    frame = decoded.measure(results)
    figures = paper.read("table1", ("pair", "temperature", "dataset", "tree", *PAPER_COLUMNS.values()))
    ranges = [_paper(row, figures) for row in frame.to_dict("records")]
    frame = frame.assign(paper_low=[low for low, _ in ranges], paper_high=[high for _, high in ranges])
    settings = set(zip(figures.pair, figures.dataset, strict=True))
    is_same = set(zip(frame.pair, frame.dataset, strict=True)) <= settings
    notes = (
        *([BIASED] if (frame.verifier == "resispec").any() else []),
        SAME_SETTING if is_same else OTHER_SETTING,
        COMPARED,
        *footer(results, plan, *decoded.definitions(metrics.METRICS, results)),
    )
    caption = CAPTION.format(plan.profile)
    return script.Artefact((decoded.table("table1", results, frame, (caption, notes), metrics.METRICS),))


def _paper(row: dict[str, Any], figures: pd.DataFrame) -> tuple[float, float]:
    """The paper's lowest and highest figure for a row of the frame: one figure for its own setting."""
    column = PAPER_COLUMNS.get((row["verifier"], row["quantity"]))
    if column is None or row["decoder"] != "specinfer":
        return float("nan"), float("nan")
    rows = figures[(figures.temperature == row["temperature"]) & (figures.tree == row["tree"])]
    exact = rows[(rows.pair == row["pair"]) & (rows.dataset == row["dataset"])]
    found = (rows if exact.empty else exact)[column]
    return found.min(), found.max()


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("table1", make, arguments)


if __name__ == "__main__":
    sys.exit(main())
