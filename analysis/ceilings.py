"""Ceilings beside cells that decode: no exact verifier emits more on trees drawn the same way."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.load import LABELS, Plan, load
from analysis.metric_table import with_measured
from analysis.metrics import Metric
from analysis.stats import ceiling

CEILING = Metric(
    "ceiling",
    "Ceiling",
    "no exact verifier emits more on trees drawn like these (a bound over whole paths, held out; "
    "brackets: 1.96 standard errors, prefixes counted as independent). It need not be attained. "
    "Measured in text that the target wrote after the same prompts. Draws other than i.i.d. have "
    "no ceiling here",
)
FIELDS = ("rollout_log_ratios", "tree_log_ratios")


def is_bound(part: str) -> bool:
    """Whether a part of an artefact measures ceilings."""
    return part.startswith("bound")


def with_ceilings(frame: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """The frame of `measure` with the quantity "ceiling" of each cell; NaN for trees without one.

    plan: the plan of an artefact with parts that measure ceilings.
    """
    bounds = load(plan.only(lambda cell: is_bound(cell.part)), FIELDS)
    keys = [name for name in LABELS if name != "verifier"]
    keys += [name for name in bounds.more if name in frame]

    files = {cell.cell_id: str(cell.tree_file or "") for cell in plan.requests}

    def place(about: Mapping[str, Any]) -> tuple[Any, ...]:
        # of one name there may be a tree for every verifier
        return *(about[key] for key in keys), files[about["cell_id"]]

    ceilings = {
        place(about): ({CEILING.name: ceiling(*(rows[name] for name in FIELDS))}, len(rows))
        for about, rows in bounds.each()
        if rows is not None
    }
    return with_measured(frame, [CEILING.name], place, ceilings)
