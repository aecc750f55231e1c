"""Costs of a step, and gains over SpecInfer at its best, beside the metrics of decoding cells."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import metrics
from analysis.ceilings import CEILING
from analysis.load import Plan, Request, Results
from analysis.metric_table import baseline_of, measure, with_gain, with_quantity
from analysis.metrics import TOKENS_PER_S, Metric
from analysis.stats import ABSENT, Interval
from resispec import trees
from resispec.trees import Topology, grow_map

GAIN_OVER_BEST = Metric(
    "gain_over_best",
    "Gain over best",
    "accepted length over that of SpecInfer's standard rule on the tree that is best for it",
)
GAIN_OVER_RESISPEC = Metric(
    "gain_over_resispec",
    "Gain over ResiSpec",
    "accepted length over that of ResiSpec, which is biased, on d5b3",
)
DRAFT_FORWARDS = Metric(
    "draft_forwards",
    "Draft forwards a step",
    "those that a step waits for, one after another; the target has one",
    spec=".0f",
)
STEP_MS = Metric(
    "step_ms", "ms a step", "decoding milliseconds over all steps, drafting included", spec=".1f"
)
SHARE_OF_CEILING = Metric(
    "share_of_ceiling", "Share of ceiling", "accepted length over the ceiling of the cell's tree"
)


def specinfer_on_own(_: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline that is SpecInfer's standard rule on the tree that was searched for with it."""
    return {"decoder": "specinfer", "tree": "own_121"}


def resispec_on_d5b3(_: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline that is ResiSpec on the paper's tree."""
    return {"decoder": "specinfer", "tree": "d5b3", "verifier": "resispec"}


OTHER_GAINS = {GAIN_OVER_BEST: specinfer_on_own, GAIN_OVER_RESISPEC: resispec_on_d5b3}
"""Gains beside that over SpecInfer on d5b3, and their baselines."""


def measure_with_costs(results: Results, plan: Plan) -> pd.DataFrame:
    """Frame of `measure` with OTHER_GAINS, DRAFT_FORWARDS and STEP_MS."""
    frame = measure(results, baseline_of(plan))
    for gain, baseline in OTHER_GAINS.items():
        frame = with_gain(frame, results, gain, baseline)
    forwards = draft_forwards(plan)
    rates = _values(frame, TOKENS_PER_S)

    def step_ms(row: Mapping[str, Any]) -> Interval:
        rate = rates.get(row["cell_id"])
        return Interval(1e3 * row["value"] / rate) if rate else ABSENT

    frame = with_quantity(
        frame, DRAFT_FORWARDS.name, lambda row: forwards.get(row["cell_id"], ABSENT)
    )
    return with_quantity(frame, STEP_MS.name, step_ms)


def with_shares(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame with ceilings, with SHARE_OF_CEILING."""
    ceilings = _values(frame, CEILING)

    def share(row: Mapping[str, Any]) -> Interval:
        ceiling = ceilings.get(row["cell_id"])
        return Interval(row["value"] / ceiling) if ceiling else ABSENT

    return with_quantity(frame, SHARE_OF_CEILING.name, share)


def with_values(frame: pd.DataFrame, columns: Sequence[Metric]) -> list[Metric]:
    """The metrics that some cell of a frame has, and those of `metrics.METRICS`."""
    measured = set(frame.quantity[frame.value.notna()])
    return [one for one in columns if one.name in measured or one in metrics.METRICS]


def draft_forwards(plan: Plan) -> dict[str, Interval]:
    """Forwards of the draft in a step, one after another, of each cell that is done, by its id.

    A tree of n levels takes n - 1. Cells without a tree are left out, and those whose tree or
    drafter is not of `resispec`: such a drafter may take any number.
    """
    counts = {}
    for cell in plan.requests:
        if plan.status(cell.cell_id).state == "done" and (topology := _topology(plan, cell)):
            counts[cell.cell_id] = Interval(topology.num_levels - 1)
    return counts


def _topology(plan: Plan, cell: Request) -> Topology | None:
    if not cell.labels.get("tree"):
        return None
    config = plan.configuration(cell.cell_id)
    drafter = (config.get("decoder") or {}).get("drafter") or {}
    if not drafter.get("_target_", "").startswith("resispec.drafters."):
        return None
    if cell.tree_file:
        return grow_map.load(cell.tree_file)
    options = dict(config.get("tree") or {})
    room, _, name = options.pop("_target_", "").rpartition(".")
    return getattr(trees, name)(**options) if room == trees.__name__ else None


def _values(frame: pd.DataFrame, metric: Metric) -> dict[str, float]:
    """The values of a metric by cell."""
    rows = frame[(frame.quantity == metric.name) & frame.value.notna()]
    return dict(zip(rows.cell_id, rows.value, strict=True))
