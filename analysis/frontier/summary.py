"""The frontier in a few lines: the paper's two rules, and the best exact verifiers on as many positions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from analysis import labels, metrics
from analysis.load import Plan
from analysis.report import Table

ROWS = (
    ("specinfer", "d5b3", "standard"),
    ("specinfer", "d5b3", "resispec"),
    ("specinfer", "d5b3", "traversal_optimal"),
    ("specinfer", "best_121", "traversal_optimal"),
)
"""Decoder, tree and verifier, all with 121 verified positions."""
TEMPERATURES = (1.0, 0.6)
METRICS = (metrics.ACCEPTED_LENGTH, metrics.GAIN)
NOTES = (
    "Ranges are over the data sets. Gain: over SpecInfer's standard rule on d5b3. All trees have 121 "
    "verified positions; best of 121 is searched for on documents that are not measured. Every row with its "
    "interval, its ceiling and its audit: frontier.md.",
)


def table(frame: pd.DataFrame, plan: Plan) -> Table:
    """frame: of the frontier's table."""
    records, shown = [], []
    for decoder, tree, verifier in ROWS:
        own = frame[(frame.decoder == decoder) & (frame.tree == tree) & (frame.verifier == verifier)]
        line = {"Tree": labels.name("tree", tree), "Method": labels.method(decoder, verifier)}
        for temperature in TEMPERATURES:
            for metric in METRICS:
                found = own[(own.temperature == temperature) & (own.quantity == metric.name)].value
                low, high = float(found.min()), float(found.max())
                line[f"{metric.label}, T = {temperature:g}"] = labels.between(low, high, metric.spec)
                named = {"decoder": decoder, "tree": tree, "verifier": verifier, "temperature": temperature}
                records.append(named | {"quantity": metric.name, "low": low, "high": high})
        shown.append(line | {"Audit": _verdicts(own)})
    return Table(
        stem="frontier_summary",
        frame=pd.DataFrame(records),
        shown=pd.DataFrame(shown),
        num_keys=2,
        caption=f"The claim and what is possible exactly, {plan.profile} profile.",
        notes=NOTES,
    )


def _verdicts(own: Any) -> str:
    """What the audits of a row's cells say, and how many do: "exact (6 of 6)"."""
    wanted = own[(own.quantity == metrics.ACCEPTED_LENGTH.name) & own.temperature.isin(TEMPERATURES)]
    counts = Counter(verdict for verdict in wanted.verdict if verdict)
    said = [f"{verdict} ({count} of {len(wanted)})" for verdict, count in counts.most_common()]
    return ", ".join(said) or labels.ABSENT
