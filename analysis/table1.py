"""Table 1: SpecInfer and ResiSpec on d5b3 beside the published figures, with the autoregressive baseline of the run.

Usage: python -m analysis.table1 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis import paper
from analysis.load import Results
from analysis.measure import measure
from analysis.report import Table, footer
from analysis.script import run

# (verifier, quantity) -> the column of results/paper/table1.csv that publishes it
PUBLISHED = {
    ("standard", "accepted_length"): "specinfer_accepted_length",
    ("standard", "tokens_per_s"): "specinfer_tokens_per_s",
    ("resispec", "accepted_length"): "resispec_accepted_length",
    ("resispec", "tokens_per_s"): "resispec_tokens_per_s",
    ("resispec", "accepted_length_gain"): "accepted_length_gain",
    ("resispec", "speedup"): "speedup",
}
SAME_SETTING = "(paper): the published figures for the same pair, data set and temperature, on an RTX 3090."
OTHER_SETTING = (
    "(paper): the published figures, for Llama-2-7B + 68M on an RTX 3090 on CNN/DM, OpenWebText and C4. Where a row "
    "has another pair or data set, it shows their range over the paper's three data sets at the same temperature: "
    "other models, other hardware and other text, given for orientation."
)
COMPARED = (
    "Gain and Speedup: accepted length and tokens/s over SpecInfer (standard) with the same pair, data set, "
    "temperature and tree. Speedup vs autoregressive: tokens/s over the autoregressive row."
)
BIASED = (
    "ResiSpec's rows are biased toward the draft: the law of their output is not the target's, as the audits show "
    "(see README). Their accepted length and speed are not those of a lossless method."
)


def build(results: Results, profile: str, command: str) -> Table:
    """The table of the loaded cells; every cell has a row."""
    frame = measure(results)
    published = paper.read("table1", ("pair", "temperature", "dataset", "tree", *PUBLISHED.values()))
    ranges = [_published(row, published) for row in frame.to_dict("records")]
    frame["paper_low"] = [low for low, _ in ranges]
    frame["paper_high"] = [high for _, high in ranges]
    settings = set(zip(published.pair, published.dataset, strict=True))
    is_same = set(zip(frame.pair, frame.dataset, strict=True)) <= settings
    biased = (BIASED,) if (frame.verifier == "resispec").any() else ()
    return Table(
        stem="table1",
        frame=frame,
        keys=("pair", "temperature", "dataset", "tree", "method"),
        caption=f"Table 1 of the paper, {profile} profile: accepted length and throughput of ResiSpec and SpecInfer.",
        notes=(
            *biased,
            SAME_SETTING if is_same else OTHER_SETTING,
            COMPARED,
            *footer(results, profile, command),
        ),
    )


def _published(row: dict[str, Any], published: pd.DataFrame) -> tuple[float, float]:
    """The lowest and highest published figure for a row of the frame: one figure for the paper's own setting."""
    column = PUBLISHED.get((row["verifier"], row["quantity"]))
    if column is None or row["decoder"] != "specinfer":
        return float("nan"), float("nan")
    rows = published[(published.temperature == row["temperature"]) & (published.tree == row["tree"])]
    exact = rows[(rows.pair == row["pair"]) & (rows.dataset == row["dataset"])]
    figures = (rows if exact.empty else exact)[column]
    return figures.min(), figures.max()


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return run("table1", build, arguments)


if __name__ == "__main__":
    sys.exit(main())
