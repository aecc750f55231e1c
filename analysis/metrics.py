"""The metrics of cells that decode, each declared once.

To add one: a field in the rows that the task writes (experiments/tasks/decode.py), and a definition in
METRICS here. It is then a quantity of the CSVs and a column of the tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.stats import Interval, paired_gain, ratio


@dataclass(frozen=True)
class Metric:
    """One number of a table's row: the sum of a field of its prompts over the sum of another field.

    label: the column's header. spec, paper_spec: how our number and the paper's are printed. definition: for
    the notes. over: "" for the ratio itself; "standard" or "autoregressive" for the ratio over that of this
    baseline. A metric without a numerator does not come from a cell's own rows; its artefact measures it.
    """

    name: str
    label: str
    definition: str
    numerator: str = ""
    denominator: str = ""
    spec: str = ".2f"
    paper_spec: str = ".2f"
    over: str = ""

    def of(self, prompts: pd.DataFrame, baseline: pd.DataFrame | None = None) -> Interval:
        """The metric of one cell's prompts, paired with the baseline's where it compares."""
        own = (prompts[self.numerator], prompts[self.denominator])
        if baseline is None:
            return ratio(*own)
        return paired_gain(own, (baseline[self.numerator], baseline[self.denominator]))


TOKENS = {"numerator": "num_emitted", "denominator": "num_steps"}
RATE = {"numerator": "num_emitted", "denominator": "decode_s"}

ACCEPTED_LENGTH = Metric(
    "accepted_length",
    "Accepted length",
    "tokens emitted per forward of the target, the resampled or bonus token included (all emitted tokens "
    "over all steps)",
    **TOKENS,
)
TOKENS_PER_S = Metric(
    "tokens_per_s",
    "Tokens/s",
    "emitted tokens over decoding seconds, after warm-up, without prefill",
    **RATE,
    spec=".1f",
)
GAIN = Metric(
    "accepted_length_gain", "Gain", "accepted length over the baseline's", **TOKENS, over="standard"
)
SPEEDUP = Metric("speedup", "Speedup", "tokens/s over the baseline's", **RATE, over="standard")
SPEEDUP_VS_AUTOREGRESSIVE = Metric(
    "speedup_vs_autoregressive",
    "Speedup vs autoregressive",
    "tokens/s over the autoregressive row's",
    **RATE,
    over="autoregressive",
)

METRICS = (ACCEPTED_LENGTH, TOKENS_PER_S, GAIN, SPEEDUP, SPEEDUP_VS_AUTOREGRESSIVE)
"""In the order of the columns."""


def fields() -> tuple[str, ...]:
    """The fields of rows from which METRICS are derived."""
    return tuple(dict.fromkeys(name for metric in METRICS for name in (metric.numerator, metric.denominator)))
