"""Table 2: Sequoia and EAGLE with their own rule and with ResiSpec, under matched settings, beside the published figures.

Usage: python -m analysis.table2 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis import labels, paper
from analysis.load import Results, load
from analysis.measure import measure, same_decoder
from analysis.report import Table, footer
from analysis.script import run
from experiments.cells import Cell
from resispec.trees import grow_map

QUANTITIES = ("accepted_length", "tokens_per_s", "accepted_length_gain", "speedup")
# (decoder, tree, verifier) -> the published row that it stands for: an L40 grow map has 64 nodes, and the paper's EAGLE gain
# needs the drafter's softmax as q
PAPER_ROWS = {
    ("sequoia", "growmap_64", "standard"): ("sequoia", "standard"),
    ("sequoia", "growmap_64", "resispec"): ("sequoia", "resispec"),
    ("eagle", "eagle2", "standard"): ("eagle", "standard"),
    ("eagle_softmax", "eagle2", "resispec"): ("eagle", "resispec"),
}
BIASED = (
    "Rows that the audit calls biased do not have the target's law, so their accepted length and speed are not those of a "
    "lossless method: ResiSpec's wherever siblings are drawn by chance, and all that take the softmax as q, whatever the rule."
)
PUBLISHED = (
    "(paper): the published figures at T = 1, which name no data set: Llama-2-7B + 68M with L40 grow maps of 64 nodes (Sequoia) "
    "and Llama-2-7B-Chat with its EAGLE drafter, on an RTX 3090; for orientation where a row has other models, hardware or text."
)
COMPARED = (
    "Gain and Speedup: accepted length and tokens/s over the standard rule of the same decoder on the same pair, data set and "
    "tree; for the softmax reading of EAGLE's candidates over EAGLE with its own, as in the paper. Within a decoder and tree all "
    "rows see the same prompts, seeds, shape and draws."
)
SEQUOIA = (
    "Sequoia: siblings are drawn without replacement, with fresh float64 noise at every node and step; upstream's half-precision "
    "noise, drawn once a prompt, inflates its figures and is not copied. Grow maps were searched for on this pair, data set and "
    "temperature, with other documents than those that are measured."
)
EAGLE = (
    "EAGLE, EAGLE-2's dynamic tree of 60 nodes on at most 7 levels: the likeliest candidates, each a point mass on itself, for "
    "which the standard rule is exact and ResiSpec is the same rule. Softmax as q: the same candidates with the drafter's "
    "softmax taken for the law they were drawn from, which is false, so that not even the standard rule is exact. Sampled "
    "siblings: drawn without replacement from that softmax on a fixed shape, for which it is true. At T = 1 the likeliest "
    "candidates cover little of the target's mass on this pair."
)


@dataclass(frozen=True)
class Loaded:
    """The cells, and by the id of a cell that decodes with a grow map of ours, the tokens per step expected of that map."""

    results: Results
    expected: dict[str, float]


def read(cells: Iterable[Cell]) -> Loaded:
    """The loaded cells and the maps that they used."""
    every = list(cells)
    found = {
        cell.cell_id: grow_map.about(cell.config["tree"].get("path") or "")
        for cell in every
        if "tree" in cell.labels
    }
    expected = {
        cell_id: about["expected_tokens"] for cell_id, about in found.items() if "expected_tokens" in about
    }
    return Loaded(load(every), expected)


def build(loaded: Loaded, profile: str, command: str) -> Table:
    """The table of the loaded cells; every cell has a row."""
    results = loaded.results
    frame = measure(results, baseline=_baseline)
    published = paper.read("table2", ("decoder", "verifier", "temperature", *QUANTITIES))
    figures = [_published(row, published) for row in frame.to_dict("records")]
    frame["paper_low"], frame["paper_high"] = figures, figures
    about = ((SEQUOIA,) if (frame.decoder == "sequoia").any() else ()) + (
        (EAGLE,) if (frame.decoder == "eagle").any() else ()
    )
    return Table(
        stem="table2",
        frame=frame,
        keys=("pair", "temperature", "dataset", "tree", "method"),
        caption=f"Table 2 of the paper, {profile} profile: other decoders with their own rule and with ResiSpec.",
        notes=(
            BIASED,
            PUBLISHED,
            COMPARED,
            *about,
            *_agreement(frame, loaded.expected),
            *footer(results, profile, command),
        ),
    )


def _baseline(cell: Mapping[str, Any]) -> dict[str, str]:
    """The paper compares its reading of EAGLE's candidates with EAGLE's own."""
    return same_decoder(cell) | ({"decoder": "eagle"} if cell["decoder"] == "eagle_softmax" else {})


def _published(row: dict[str, Any], published: pd.DataFrame) -> float:
    """The figure of the published row that this one stands for."""
    stands_for = PAPER_ROWS.get((row["decoder"], row["tree"], row["verifier"]))
    if row["quantity"] not in QUANTITIES or stands_for is None:
        return float("nan")
    wanted = pd.Series([*stands_for, row["temperature"]], ["decoder", "verifier", "temperature"])
    rows = published[(published[list(wanted.index)] == wanted).all(axis=1)]
    return float("nan") if rows.empty else float(rows[row["quantity"]].iloc[0])


def _agreement(frame: pd.DataFrame, expected: dict[str, float]) -> tuple[str, ...]:
    """Tokens per step that the search expected of its maps, beside what the standard rule was measured to emit on them."""
    rows = frame[
        (frame.quantity == "accepted_length") & (frame.verifier == "standard") & frame.cell_id.isin(expected)
    ]
    found = [
        f"{labels.name('dataset', row['dataset'])}, {labels.name('tree', row['tree'])}: {expected[row['cell_id']]:.2f} and "
        + labels.interval("accepted_length", row["value"], row["lower"], row["upper"])
        for row in rows.to_dict("records")
    ]
    intro = (
        "Tokens per step that the tree search expected, and accepted length that the standard rule measured: "
    )
    return (intro + "; ".join(found) + ".",) if found else ()


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return run("table2", build, arguments, read=read)


if __name__ == "__main__":
    sys.exit(main())
