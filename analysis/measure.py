"""Every cell's derived quantities with their intervals, in long form: one row per cell and quantity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from analysis import audits, labels
from analysis.bootstrap import ABSENT, ACCEPTED_LENGTH, SEED, TOKENS_PER_S, Interval, resample
from analysis.load import LABELS, Results
from resispec.errors import InvalidInput

AUDITED = audits.QUANTITIES
QUANTITIES = (
    "accepted_length",
    "tokens_per_s",
    "accepted_length_gain",
    "speedup",
    "speedup_vs_autoregressive",
)
COLUMNS = [
    *("cell_id", *LABELS, "status", "reason", "num_prompts", "quantity"),
    *("value", "lower", "upper", "paper_low", "paper_high", "verdict"),
]


# The decoder and the tree whose standard rule a cell is compared with, from its labels.
Baseline = Callable[[Mapping[str, Any]], dict[str, str]]


def same_decoder(cell: Mapping[str, Any]) -> dict[str, str]:
    """A cell is compared with the standard rule of its own decoder on its own tree."""
    return {"decoder": cell["decoder"], "tree": cell["tree"]}


def measure(
    results: Results,
    order: tuple[str, ...] = ("pair", "temperature", "dataset"),
    baseline: Baseline = same_decoder,
) -> pd.DataFrame:
    """The long frame of an artefact, COLUMNS, with `paper_low` and `paper_high` still NaN.

    `accepted_length_gain` and `speedup` compare a cell with the `standard` verifier of the decoder and tree that `baseline`
    names, `speedup_vs_autoregressive` with the autoregressive cell; both for the same pair, data set and temperature, on the
    same resampled prompts. NaN where the cell or its baseline has no prompts, and for a baseline and itself.

    Args:
        results: the loaded cells.
        order: labels by which the rows are ordered; decoders, trees and verifiers follow within them.
        baseline: what a cell is compared with.
    """
    prompts = dict(iter(results.prompts.groupby("cell_id", sort=False)))
    counts = {
        size: resample(size, np.random.default_rng(SEED))
        for size in {len(frame) for frame in prompts.values()}
    }
    audited = {row["cell_id"]: row for row in results.audits.to_dict("records")}
    rows = []
    for cell in _ordered(results.cells, order).to_dict("records"):
        measured = _quantities(cell, baseline(cell), results.cells, prompts, counts)
        shared = {key: cell[key] for key in ("cell_id", *LABELS, "status", "reason")}
        shared["num_prompts"] = len(prompts.get(cell["cell_id"], ()))
        audit = audited.get(cell["cell_id"], {})
        shared["verdict"] = audit.get("verdict", "")
        measured |= {name: Interval(float(audit[name]), np.nan, np.nan) for name in AUDITED if name in audit}
        for quantity in (*QUANTITIES, *AUDITED):
            found = measured.get(quantity, ABSENT)
            rows.append(
                shared | {"quantity": quantity, **vars(found), "paper_low": np.nan, "paper_high": np.nan}
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _ordered(cells: pd.DataFrame, order: tuple[str, ...]) -> pd.DataFrame:
    """The cells as they are printed: within a group the autoregressive baseline comes first; it has no tree."""
    keys = [*order, "decoder", "tree", "verifier"]
    ranks = pd.DataFrame({key: cells[key].map(partial(labels.rank, key)) for key in keys}, index=cells.index)
    return cells.loc[ranks.sort_values(keys, kind="stable").index]


def _quantities(
    cell: dict[str, Any],
    baseline: dict[str, str],
    cells: pd.DataFrame,
    prompts: dict[str, pd.DataFrame],
    counts: dict[int, np.ndarray],
) -> dict[str, Interval]:
    """What can be derived for one cell; empty when it has no prompts."""
    own = prompts.get(cell["cell_id"])
    if own is None:
        return {}
    drawn = counts[len(own)]
    found = {
        "accepted_length": ACCEPTED_LENGTH.interval(own, drawn),
        "tokens_per_s": TOKENS_PER_S.interval(own, drawn),
    }
    if cell["decoder"] == "autoregressive":
        return found
    setting = {key: cell[key] for key in ("pair", "dataset", "temperature")}
    standard = _only(cells, setting | baseline | {"verifier": "standard"})
    if standard != cell["cell_id"] and standard in prompts:
        found["accepted_length_gain"] = ACCEPTED_LENGTH.paired_gain(own, prompts[standard], drawn)
        found["speedup"] = TOKENS_PER_S.paired_gain(own, prompts[standard], drawn)
    autoregressive = _only(cells, setting | {"decoder": "autoregressive"})
    if autoregressive in prompts:
        found["speedup_vs_autoregressive"] = TOKENS_PER_S.paired_gain(own, prompts[autoregressive], drawn)
    return found


def _only(cells: pd.DataFrame, wanted: dict[str, Any]) -> str:
    """The cell with these labels, or an empty string. Raises InvalidInput when there are several."""
    matches = cells.cell_id[(cells[list(wanted)] == pd.Series(wanted)).all(axis=1)].tolist()
    if len(matches) > 1:
        raise InvalidInput(
            f"cell {matches[1]}: has the labels of {matches[0]}; a baseline must be one cell ({wanted})"
        )
    return matches[0] if matches else ""
