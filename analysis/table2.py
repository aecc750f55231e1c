"""Table 2: Sequoia and EAGLE with their own rule and with ResiSpec, beside the paper's figures.

Usage: python -m analysis.table2 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import labels, metrics
from analysis.artefact import Artefact, command, footer, paper
from analysis.load import Plan, load
from analysis.metric_table import NO_FIGURE, by_cell, definitions, measure, same_decoder
from analysis.table import Number
from resispec.trees import grow_map

METRICS = tuple(metric for metric in metrics.METRICS if metric.over != "autoregressive")
PAPER_QUANTITIES = ("accepted_length", "tokens_per_s", "accepted_length_gain", "speedup")
# (decoder, tree, verifier) -> the paper's row that it stands for. An L40 grow map has 64 nodes,
# and the paper's EAGLE gain needs the drafter's softmax as q
PAPER_ROWS = {
    ("sequoia", "growmap_64", "standard"): ("sequoia", "standard"),
    ("sequoia", "growmap_64", "resispec"): ("sequoia", "resispec"),
    ("eagle", "eagle2", "standard"): ("eagle", "standard"),
    ("eagle_softmax", "eagle2", "resispec"): ("eagle", "resispec"),
}
BIASED = (
    "Rows that the audit calls biased do not have the target's law, so their accepted length and speed are "
    "not those of a lossless method: ResiSpec's wherever siblings are drawn by chance, and all that take "
    "the softmax as q, whatever the rule."
)
PAPER = (
    "(paper): the paper's figures at T = 1, which name no data set: Llama-2-7B + 68M with L40 grow maps of "
    "64 nodes (Sequoia) and Llama-2-7B-Chat with its EAGLE drafter, on an RTX 3090; for orientation where a "
    "row has other models, hardware or text."
)
COMPARED = (
    "Gain and Speedup: the baseline is the standard rule of the same decoder on the same pair, data set and "
    "tree; for the softmax reading of EAGLE's candidates it is EAGLE with its own, as in the paper. Within "
    "a decoder and tree all rows see the same prompts, seeds, shape and draws."
)
SEQUOIA = (
    "Sequoia: siblings are drawn without replacement, with fresh float64 noise at every node and step; "
    "upstream's half-precision noise, drawn once a prompt, inflates its figures and is not copied. Grow "
    "maps were searched for on this pair, data set and temperature, with other documents than those that "
    "are measured."
)
EAGLE = (
    "EAGLE, EAGLE-2's dynamic tree of 60 nodes on at most 7 levels: the likeliest candidates, each a point "
    "mass on itself, for which the standard rule is exact and ResiSpec is the same rule. Softmax as q: the "
    "same candidates with the drafter's softmax taken for the law they were drawn from, which is false, so "
    "that not even the standard rule is exact. Sampled siblings: drawn without replacement from that "
    "softmax on a fixed shape, for which it is true. At T = 1 the likeliest candidates cover little of the "
    "target's mass on this pair."
)
CAPTION = "Table 2 of the paper, {} profile: other decoders with their own rule and with ResiSpec."


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells; every cell has a row."""
    results = load(plan, metrics.fields())
    figures = paper("table2", ("decoder", "verifier", "temperature", *PAPER_QUANTITIES))
    figures = figures.set_index(["decoder", "verifier", "temperature"])

    def figure(row: Mapping[str, Any]) -> tuple[float, float]:
        """The figure of the paper's row that this one stands for."""
        stands_for = PAPER_ROWS.get((row["decoder"], row["tree"], row["verifier"]))
        place = (*(stands_for or ("", "")), row["temperature"])
        if row["quantity"] not in PAPER_QUANTITIES or place not in figures.index:
            return NO_FIGURE
        return (float(figures.loc[place, row["quantity"]]),) * 2

    frame = measure(results, _baseline, figure)
    about = (
        BIASED,
        PAPER,
        COMPARED,
        *([SEQUOIA] if (frame.decoder == "sequoia").any() else []),
        *([EAGLE] if (frame.decoder == "eagle").any() else []),
        *_expected(frame, plan),
    )
    notes = footer(results, plan, about, definitions(METRICS, results))
    return Artefact((by_cell("table2", results, frame, CAPTION.format(plan.profile), notes, METRICS),))


def _baseline(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The paper compares its reading of EAGLE's candidates with EAGLE's own."""
    return same_decoder(cell) | ({"decoder": "eagle"} if cell["decoder"] == "eagle_softmax" else {})


def _expected(frame: pd.DataFrame, plan: Plan) -> list[str]:
    """Tokens per step that the search expected of its maps, beside what the standard rule emitted on them."""
    about = {one.cell_id: grow_map.about(one.tree_file) for one in plan.requests if one.tree_file}
    texts = [
        f"{labels.name('dataset', row['dataset'])}, {labels.name('tree', row['tree'])}: "
        f"{about[row['cell_id']]['expected_tokens']:.2f} and {Number.of(row, metrics.ACCEPTED_LENGTH.spec)}"
        for row in frame[frame.quantity == "accepted_length"].to_dict("records")
        if row["verifier"] == "standard" and "expected_tokens" in about.get(row["cell_id"], {})
    ]
    intro = (
        "Tokens per step that the tree search expected, and accepted length that the standard rule measured"
    )
    return [f"{intro}: {'; '.join(texts)}."] if texts else []


main = command("table2", make)


if __name__ == "__main__":
    sys.exit(main())
