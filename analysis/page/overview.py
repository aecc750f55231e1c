"""One table of each class of number that the paper prints, beside the numbers measured here."""

from collections.abc import Iterator, Mapping
from itertools import chain, starmap

import pandas as pd

from analysis import labels
from analysis.audits import ENUMERATED
from analysis.metrics import METRICS
from analysis.page.sections import titled
from analysis.table import Audit, Column, Gap, Key, Paper, Table, TableCell
from resispec.audit.verdict import Finding

CAPTION = (
    "What the paper prints and what was measured here: the range over all rows that have a figure "
    "of the paper. Where models, text or hardware are not the paper's, its figures are given for "
    "orientation."
)
QUANTITIES = {metric.name: (metric.label, metric.spec, ".2f") for metric in METRICS} | {
    "paper_kl": ("D_KL as published", ".1e", ".1e"),
    "expected_accepted_length": ("Expected accepted length", ".2f", ".2f"),
    "marginal_gain": ("Marginal gain", ".2f", ".2f"),
    "efficiency": ("Efficiency", ".3f", ".3f"),
}
"""quantity -> its name, and the formats of our number and the paper's;
others have their own name and .3g.
"""
COLUMNS = (
    *(Column(name.lower(), name, "key") for name in ("Artefact", "Method", "Quantity")),
    Column("audit", "Audit", "audit"),
    *(Column("range", name, "number") for name in ("Paper", "Here")),
    Column("measured", "Measured", "text"),
)


def table(frames: Mapping[str, pd.DataFrame]) -> Table:
    """The table, with a line for each artefact, method and quantity for
    which the paper has figures.

    frames: artefact -> that of its first table.
    """
    return Table(
        "overview", COLUMNS, tuple(chain.from_iterable(starmap(_lines, frames.items()))), CAPTION
    )


def _lines(artefact: str, frame: pd.DataFrame) -> Iterator[tuple[TableCell, ...]]:
    """The lines of an artefact.

    frame: that of its first table; without figures of the paper, no lines.
    """
    if "paper" in frame:
        frame = frame.assign(paper_low=frame.paper, paper_high=frame.paper)
    if not {"paper_low", "quantity", "verifier"} <= set(frame):
        return
    frame = frame[frame.paper_low.notna()]
    pairs = zip(frame.get("decoder", [""] * len(frame)), frame.verifier, strict=True)
    methods = [
        labels.method(*pair) if pair[0] else labels.name("verifier", pair[1]) for pair in pairs
    ]
    for (method, quantity), rows in frame.assign(method=methods).groupby(
        ["method", "quantity"], sort=False
    ):
        fallback = (quantity.replace("_", " ").capitalize(), ".3g", ".3g")
        name, spec, paper_spec = QUANTITIES.get(quantity, fallback)
        audit: TableCell = labels.ABSENT
        verdicts = rows.get("verdict", pd.Series(dtype=object)).replace(
            ENUMERATED, str(Finding.BIASED)
        )
        # the last found is shown
        for finding in (Finding.UNDECIDED, Finding.NO_BIAS_SEEN, Finding.BIASED):
            if count := int((verdicts == finding).sum()):
                audit = Audit(finding, rows=f"{count} of {len(rows)} rows")
        values = rows.value.dropna()
        yield (
            Key(artefact, titled(artefact)),
            Key(method, method),
            Key(quantity, name),
            audit,
            Paper(rows.paper_low.min(), rows.paper_high.max(), paper_spec),
            Paper(values.min(), values.max(), spec) if len(values) else Gap("missing"),
            f"{len(values)} of {len(rows)}",
        )
