"""Searched trees: the fastest number of levels for each cost of a draft forward."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from analysis import labels, long
from analysis.artefact import origin, texts
from analysis.load import FILTERS_OFF, Plan, filters_in
from analysis.table import Notes, Number, Table
from resispec.trees import grow_map

TEXTS = texts("frontier_shapes")
PLACE = ("temperature", "decoder", "verifier", "num_nodes", "num_levels")
COLUMNS = (
    *(*PLACE, "widths", "expected_tokens"),
    *("standard_error", "s_per_token", "fastest_from_ratio", "fastest_up_to_ratio"),
)
SHOWN = (
    long.words("num_levels", "Levels", lambda row: str(row["num_levels"]), "number"),
    long.words("widths", "Nodes a level", lambda row: row["widths"].strip("[]"), "number"),
    long.words(
        "expected_tokens",
        "Tokens a step",
        lambda row: f"{row['expected_tokens']:.2f} ({row['standard_error']:.2f})",
        "number",
    ),
    long.words(
        "s_per_token", "ms a token", lambda row: str(Number(1000 * row["s_per_token"])), "number"
    ),
    long.words(
        "fastest_up_to_ratio",
        "Fastest at cost ratios",
        lambda row: between(row["fastest_from_ratio"], row["fastest_up_to_ratio"]),
        "number",
    ),
)


def read(plan: Plan) -> list[dict[str, Any]]:
    """Facts in the files of searched trees (experiments/search), once per tree, with the decoder.

    If a tree was searched for at filtered laws, the facts of all trees name those filters.
    """
    decoders = {cell.tree_file: cell.labels["decoder"] for cell in plan.requests if cell.tree_file}
    facts = [grow_map.about(path) | {"decoder": decoder} for path, decoder in decoders.items()]
    shapes = [about for about in facts if "frontier" in about]
    filters = {key: FILTERS_OFF[key] for about in shapes for key in filters_in(about)}
    return [filters | about for about in shapes]


def table(shapes: Sequence[Mapping[str, Any]], plan: Plan) -> Table:
    """The table of all searched trees; a tree's shapes are in the order of their levels."""
    records = []
    for about in shapes:
        ends = [math.inf if end is None else end for end in about["fastest_up_to_ratio"].values()]
        ranges = [dict(zip(COLUMNS[-2:], pair, strict=True)) for pair in pairwise([0.0, *ends])]
        by_levels = dict(zip(about["fastest_up_to_ratio"], ranges, strict=True))
        no_range = dict.fromkeys(COLUMNS[-2:], math.nan)
        for levels, shape in about["frontier"].items():
            widths = [1, *shape["widths"]]
            sizes = {
                "num_nodes": sum(widths),
                "num_levels": int(levels),
                "widths": json.dumps(widths),
            }
            records.append({**about, **shape, **sizes, **by_levels.get(levels, no_range)})
    filters = filters_in(shapes[0]) if shapes else []
    records.sort(key=lambda row: (row["num_nodes"], row["num_levels"]))
    records.sort(key=lambda row: [row[key] for key in filters])
    records.sort(key=lambda row: [labels.rank(key, row[key]) for key in ("temperature", "decoder")])
    frame = pd.DataFrame(records, columns=[*filters, *COLUMNS])
    shown = (*long.names(("temperature", *filters, "method"), num_nodes="Positions"), *SHOWN)
    lines = long.tabulate(frame[frame.fastest_up_to_ratio.notna()], [*filters, *PLACE], shown, ())
    source = origin(plan, {"Device": [about["device"] for about in shapes]})
    notes = Notes(tuple(TEXTS["about"]), source=source, stale=plan.outdated)
    return Table("frontier_shapes", *lines, TEXTS["caption"], frame, notes)


def between(low: float, high: float) -> str:
    """The text of an interval of cost ratios; "" if its lower end is NaN."""
    if math.isnan(low):
        return ""
    return f"from {low:.3f}" if math.isinf(high) else f"{low:.3f} to {high:.3f}"


def by_cost(shapes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Note on the largest i.i.d. trees' fastest numbers of levels, by cost of a draft forward."""
    hottest_first = sorted(shapes, key=lambda about: -about["temperature"])
    sizes = [
        (1 + sum(about["widths"]), about)
        for about in hottest_first
        if about["decoder"] == "specinfer"
    ]
    size = max((size for size, _ in sizes), default=0)
    lines = []
    for about in [about for count, about in sizes if count == size]:
        ranges = [
            f"{levels} levels {'beyond' if limit is None else f'up to {limit:.3f}'}"
            for levels, limit in about["fastest_up_to_ratio"].items()
        ]
        cost = about["draft_s"] / about["target_s"][str(size)]
        law = labels.setting({key: about[key] for key in ("temperature", *filters_in(about))})
        lines.append(f"at {law} {', '.join(ranges)} (this pair, here: {cost:.3f})")
    return [TEXTS["by_cost"].format(size=size, texts="; ".join(lines))] if lines else []
