"""The shapes that were searched for: how many levels are the fastest at which cost of a draft forward."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import labels
from analysis.law_report import LawTable, number
from experiments.cells import Cell
from resispec.trees import grow_map

COLUMNS = (
    "temperature", "decoder", "verifier", "num_nodes", "num_levels", "widths", "expected_tokens", "standard_error", "s_per_token",
    "fastest_from_ratio", "fastest_up_to_ratio",
)  # fmt: skip
HEADER = (
    "T",
    "Method",
    "Positions",
    "Levels",
    "Nodes a level",
    "Tokens a step",
    "ms a token",
    "Fastest at cost ratios",
)
RATIO = (
    "Cost ratio: seconds of one forward of the draft over a level, over seconds of one forward of the target over all positions; "
    "a tree of L levels takes L - 1 of the former and one of the latter. Of each size the shapes that are the fastest at some "
    "ratio are listed; the CSV has the best of every number of levels."
)
EXPECTED = (
    "Tokens a step: expected, from laws of drafted trees in text that the target wrote, on documents that no choice of shape has "
    "seen and no table measures; in parentheses the standard error over documents. ms a token: of both models' forwards alone, "
    "as timed on this machine. Drawn i.i.d.: regular shapes and their neighbours were compared; without replacement and top-k: "
    "the trees of Sequoia's search for every number of levels, with at most 32 children a node."
)


def read(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """What the searched maps of the cells say of themselves (`experiments.search.best_shape`), each map once, with the decoder."""
    paths = {
        str(cell.config["tree"]["path"]): cell.labels["decoder"]
        for cell in cells
        if cell.labels.get("tree", "").startswith("best")
    }
    found = [grow_map.about(path) | {"decoder": decoder} for path, decoder in paths.items()]
    return [about for about in found if "frontier" in about]


def build(shapes: Sequence[Mapping[str, Any]], profile: str) -> LawTable:
    """The table of all maps; of a map, the shapes by rising number of levels."""
    frame = pd.DataFrame([row for about in shapes for row in _rows(about)], columns=list(COLUMNS))
    order = [
        frame[name].map(lambda value, name=name: labels.rank(name, value))
        for name in ("temperature", "decoder")
    ]
    keys = pd.concat([*order, frame.num_nodes, frame.num_levels], axis=1)
    frame = frame.loc[keys.sort_values(by=list(keys.columns), kind="stable").index].reset_index(drop=True)
    fastest = frame[frame.fastest_up_to_ratio.notna()]
    shown = pd.DataFrame([_printed(row) for row in fastest.to_dict("records")], columns=list(HEADER))
    devices = ", ".join(dict.fromkeys(f"{about['device']}" for about in shapes)) or "none"
    source = f"Profile: {profile}. Device: {devices}. Made by: make reproduce-frontier PROFILE={profile}."
    caption = f"Shapes of the frontier, {profile} profile: which is the fastest depends on what a draft forward costs."
    return LawTable(
        "frontier_shapes", frame, shown, num_keys=3, caption=caption, notes=(RATIO, EXPECTED, source)
    )


def _rows(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    limits = {
        levels: math.inf if limit is None else limit for levels, limit in about["fastest_up_to_ratio"].items()
    }
    starts = dict(zip(limits, [0.0, *list(limits.values())[:-1]], strict=True))
    return [
        {
            **{name: about[name] for name in ("temperature", "decoder", "verifier")},
            **{name: shape[name] for name in ("expected_tokens", "standard_error", "s_per_token")},
            "num_nodes": 1 + sum(shape["widths"]), "num_levels": int(levels), "widths": json.dumps([1, *shape["widths"]]),
            "fastest_from_ratio": starts.get(levels, math.nan), "fastest_up_to_ratio": limits.get(levels, math.nan),
        }
        for levels, shape in about["frontier"].items()
    ]  # fmt: skip


def _printed(row: Mapping[str, Any]) -> list[str]:
    return [
        labels.text("temperature", row["temperature"]),
        labels.method(row["decoder"], row["verifier"]),
        str(row["num_nodes"]),
        str(row["num_levels"]),
        row["widths"].strip("[]"),
        f"{row['expected_tokens']:.2f} ({row['standard_error']:.2f})",
        number(1000 * row["s_per_token"], ".2f"),
        _between(row["fastest_from_ratio"], row["fastest_up_to_ratio"]),
    ]


def _between(low: float, high: float) -> str:
    return f"from {low:.3f}" if math.isinf(high) else f"{low:.3f} to {high:.3f}"


def by_cost(shapes: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """In one note, the levels of the largest i.i.d. trees that are the fastest, by the cost of a draft forward."""
    own = [about for about in shapes if about["decoder"] == "specinfer"]
    size = max((_size(about) for about in own), default=0)
    found = []
    for about in sorted(
        (about for about in own if _size(about) == size), key=lambda about: -about["temperature"]
    ):
        ranges = [
            f"{levels} levels {'beyond' if limit is None else f'up to {limit:.3f}'}"
            for levels, limit in about["fastest_up_to_ratio"].items()
        ]
        measured = about["draft_s"] / about["target_s"][str(size)]
        found.append(f"at T = {about['temperature']:g} {', '.join(ranges)} (this pair, here: {measured:.3f})")
    intro = (
        f"Fastest tree of {size} i.i.d. positions by the cost ratio of a draft forward to a target forward: "
    )
    return (f"{intro}{'; '.join(found)}. All sizes and draws: frontier_shapes.md.",) if found else ()


def _size(about: Mapping[str, Any]) -> int:
    return 1 + sum(about["widths"])
