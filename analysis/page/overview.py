"""Every class of number that the paper prints, beside what was measured here, in one table."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis import labels
from analysis.metrics import METRICS
from analysis.page.sections import Section
from analysis.report import Table
from resispec.audit.verdict import Finding

CAPTION = (
    "What the paper prints and what was measured here: the range over all rows that have a figure of the "
    "paper. Where models, text or hardware are not the paper's, its figures are given for orientation."
)
QUANTITIES = {metric.name: (metric.label, metric.spec, metric.paper_spec) for metric in METRICS} | {
    "paper_kl": ("D_KL as published", ".1e", ".1e"),
    "expected_accepted_length": ("Expected accepted length", ".2f", ".2f"),
    "marginal_gain": ("Marginal gain", ".2f", ".2f"),
    "efficiency": ("Efficiency", ".3f", ".3f"),
}
"""quantity -> its name, and how our number and the paper's are printed; others are printed as they are."""
HEADER = ("Artefact", "Method", "Quantity", "Audit", "Paper", "Here", "Measured")


def table(sections: Sequence[Section]) -> Table:
    """A line for every artefact, method and quantity for which the paper has figures."""
    records, lines = [], []
    for section in sections:
        for frame in [section.made.tables[0].frame] if section.made else []:
            for (method, quantity), rows in _classes(frame):
                measured = rows[rows.value.notna()]
                paper, here = _range(rows.paper_low, rows.paper_high), _range(measured.value, measured.value)
                records.append(
                    {"artefact": section.name, "method": method, "quantity": quantity}
                    | {"paper_low": paper[0], "paper_high": paper[1], "low": here[0], "high": here[1]}
                    | {"rows": len(rows), "measured": len(measured)}
                )
                named, spec, paper_spec = QUANTITIES.get(
                    quantity, (quantity.replace("_", " ").capitalize(), ".3g", ".3g")
                )
                texts = [
                    labels.between(*paper, paper_spec),
                    labels.between(*here, spec) if len(measured) else "missing",
                ]
                lines.append(
                    [section.title, method, named, _audit(rows), *texts, f"{len(measured)} of {len(rows)}"]
                )
    return Table("overview", pd.DataFrame(records), pd.DataFrame(lines, columns=list(HEADER)), 3, CAPTION)


def _classes(frame: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """The rows with a figure of the paper, by method and quantity, in their order."""
    if "paper" in frame:
        frame = frame.assign(paper_low=frame.paper, paper_high=frame.paper)
    if not {"paper_low", "quantity", "verifier"} <= set(frame):
        return []
    rows = frame[frame.paper_low.notna()]
    decoders = rows.decoder if "decoder" in rows else [""] * len(rows)
    methods = [
        labels.method(decoder, verifier) if decoder else labels.name("verifier", verifier)
        for decoder, verifier in zip(decoders, rows.verifier, strict=True)
    ]
    return [
        (key, group) for key, group in rows.assign(method=methods).groupby(["method", "quantity"], sort=False)
    ]


def _audit(rows: pd.DataFrame) -> str:
    """How many of the rows are biased, or else exact, or else undecided: "biased (6 of 6 rows)"."""
    for finding in (Finding.BIASED, Finding.EXACT, Finding.UNDECIDED):
        if count := int((rows.verdict == finding).sum()) if "verdict" in rows else 0:
            return f"{finding} ({count} of {len(rows)} rows)"
    return labels.ABSENT


def _range(low: pd.Series, high: pd.Series) -> tuple[float, float]:
    return float(low.min()), float(high.max())
