"""The trees that were searched for: how many levels are the fastest at which cost of a draft forward."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import labels
from analysis.artefact import distinct, key_cells
from analysis.load import Plan
from analysis.table import Cell, Column, Key, Notes, Number, Source, Table, Text
from resispec.trees import grow_map

COLUMNS = (
    *("temperature", "decoder", "verifier", "num_nodes", "num_levels", "widths", "expected_tokens"),
    *("standard_error", "s_per_token", "fastest_from_ratio", "fastest_up_to_ratio"),
)
HEADER = {
    "temperature": "T",
    "method": "Method",
    "num_nodes": "Positions",
    "num_levels": "Levels",
    "widths": "Nodes a level",
    "expected_tokens": "Tokens a step",
    "s_per_token": "ms a token",
    "fastest_up_to_ratio": "Fastest at cost ratios",
}
CAPTION = "Shapes of the frontier, {} profile: which is the fastest depends on what a draft forward costs."
RATIO = (
    "Cost ratio: seconds of one forward of the draft over a level, over seconds of one forward of the "
    "target over all positions; a tree of L levels takes L - 1 of the former and one of the latter. Of each "
    "size the shapes that are the fastest at some ratio are listed; the CSV has the best of every number of "
    "levels."
)
EXPECTED = (
    "Tokens a step: expected, from laws of drafted trees in text that the target wrote, on documents that "
    "no choice of shape has seen and no table measures; in parentheses the standard error over documents. "
    "ms a token: of both models' forwards alone, as timed on this machine. Drawn i.i.d.: regular shapes and "
    "their neighbours were compared; without replacement and top-k: the trees of Sequoia's search for every "
    "number of levels, with at most 32 children a node."
)


def read(plan: Plan) -> list[dict[str, Any]]:
    """The facts that searched trees state of themselves (experiments/search), each once, with the decoder."""
    decoders = {one.tree_file: one.labels["decoder"] for one in plan.requests if one.tree_file}
    found = [grow_map.about(path) | {"decoder": decoder} for path, decoder in decoders.items()]
    return [about for about in found if "frontier" in about]


def table(shapes: Sequence[Mapping[str, Any]], plan: Plan) -> Table:
    """The table of all searched trees; of a tree, the shapes by rising number of levels."""
    frame = pd.DataFrame([row for about in shapes for row in _rows(about)], columns=list(COLUMNS))
    ranks = pd.DataFrame(
        {name: [labels.rank(name, value) for value in frame[name]] for name in ("temperature", "decoder")}
        | {name: frame[name].tolist() for name in ("num_nodes", "num_levels")}
    )
    frame = frame.loc[ranks.sort_values(list(ranks), kind="stable").index].reset_index(drop=True)
    fastest = frame[frame.fastest_up_to_ratio.notna()].to_dict("records")
    source = Source(plan.profile, distinct(about["device"] for about in shapes), plan.command)
    columns = [
        Column(key, header, "key" if place < 3 else "number")
        for place, (key, header) in enumerate(HEADER.items())
    ]
    notes = Notes((RATIO, EXPECTED), source=source, stale=plan.stale)
    caption = CAPTION.format(plan.profile)
    return Table("frontier_shapes", tuple(columns), tuple(map(_line, fastest)), caption, frame, notes)


def _line(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (
        *key_cells(row, ("temperature", "method")),
        Key(row["num_nodes"], str(row["num_nodes"])),
        Text(str(row["num_levels"])),
        Text(row["widths"].strip("[]")),
        Text(f"{row['expected_tokens']:.2f} ({row['standard_error']:.2f})"),
        Number(1000 * row["s_per_token"]),
        Text(between(row["fastest_from_ratio"], row["fastest_up_to_ratio"])),
    )


def between(low: float, high: float) -> str:
    """An interval of cost ratios."""
    return f"from {low:.3f}" if math.isinf(high) else f"{low:.3f} to {high:.3f}"


def _rows(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    limits = {
        levels: math.inf if limit is None else limit for levels, limit in about["fastest_up_to_ratio"].items()
    }
    starts = dict(zip(limits, [0.0, *list(limits.values())[:-1]], strict=True))
    return [
        {
            **{name: about[name] for name in ("temperature", "decoder", "verifier")},
            **{name: shape[name] for name in ("expected_tokens", "standard_error", "s_per_token")},
            "num_nodes": 1 + sum(shape["widths"]),
            "num_levels": int(levels),
            "widths": json.dumps([1, *shape["widths"]]),
            "fastest_from_ratio": starts.get(levels, math.nan),
            "fastest_up_to_ratio": limits.get(levels, math.nan),
        }
        for levels, shape in about["frontier"].items()
    ]


def by_cost(shapes: Sequence[Mapping[str, Any]]) -> list[str]:
    """In one note, the fastest levels of the largest i.i.d. trees, by the cost of a draft forward."""
    sizes = [(1 + sum(about["widths"]), about) for about in shapes if about["decoder"] == "specinfer"]
    size = max((size for size, _ in sizes), default=0)
    largest = sorted((about for own, about in sizes if own == size), key=lambda about: -about["temperature"])
    texts = []
    for about in largest:
        ranges = [
            f"{levels} levels {'beyond' if limit is None else f'up to {limit:.3f}'}"
            for levels, limit in about["fastest_up_to_ratio"].items()
        ]
        measured = about["draft_s"] / about["target_s"][str(size)]
        texts.append(f"at T = {about['temperature']:g} {', '.join(ranges)} (this pair, here: {measured:.3f})")
    intro = (
        f"Fastest tree of {size} i.i.d. positions by the cost ratio of a draft forward to a target forward: "
    )
    return [f"{intro}{'; '.join(texts)}. All sizes and draws: frontier_shapes.md."] if texts else []
