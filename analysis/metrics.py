"""The metrics of cells that decode, each declared once.

To add one: a field in the rows that the task writes (experiments/tasks/decode.py), and a definition in
METRICS here. It is then a quantity of the CSVs and a column of the tables. What has no interval and no column
in a table is a number of `of_cell`, for the CSVs of sweeps and for W&B.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.stats import Interval, across_runs, paired_gain, ratio


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
        """The metric of one cell's prompts, paired with the baseline's where it compares.

        The interval of a ratio of times covers how much runs differ, too, unless one process timed both cells
        in turn.
        """
        sums = (prompts[self.numerator], prompts[self.denominator])
        if baseline is None:
            return ratio(*sums)
        gain = paired_gain(sums, (baseline[self.numerator], baseline[self.denominator]))
        return across_runs(gain) if self.is_across_runs(prompts, baseline) else gain

    def is_across_runs(self, prompts: pd.DataFrame, baseline: pd.DataFrame) -> bool:
        """Whether it is a ratio of times that nobody measured in turn."""
        return self.is_timed and not timed_together(prompts, baseline)

    @property
    def is_timed(self) -> bool:
        """Whether it is a rate of time."""
        return self.denominator.endswith("_s")


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
PERCENTILES = (50, 90, 99)
"""Of times of steps and tokens."""


def fields() -> tuple[str, ...]:
    """The fields of rows from which METRICS are derived."""
    return tuple(dict.fromkeys(name for metric in METRICS for name in (metric.numerator, metric.denominator)))


def decoded(rows: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The rows of the cells that decode, by their ids; a race has their fields, too, a list each."""
    names = {*fields(), "histogram"}
    return {cell_id: prompts for cell_id, prompts in rows.items() if names <= set(prompts)}


def timed_together(*cells: pd.DataFrame) -> bool:
    """Whether one process timed each prompt of these cells in turn, given the rows of the same prompts.

    Rows of earlier versions do not say so: their cells were timed one after another.
    """
    processes = [list(prompts["timed_by"]) if "timed_by" in prompts else [None] for prompts in cells]
    return not pd.isna(processes[0]).any() and all(names == processes[0] for names in processes)


def of_cell(prompts: pd.DataFrame) -> dict[str, float]:
    """Numbers of a decoded cell beside METRICS, as far as its rows have what they are derived from.

    `acceptance_rate`: accepted drafted tokens over drafted ones. `acceptance_histogram_K`: steps that
    accepted K drafted tokens. `acceptance_rate_per_position_K`: the share of steps that accepted the drafted
    token of depth K, from 1. `step_ms_pN`: percentiles of a step's milliseconds. `token_ms_pN`: the same over
    emitted tokens, each with an equal share of its step.
    """
    histogram = pd.DataFrame(prompts.histogram.tolist()).sum()
    numbers = {f"acceptance_histogram_{accepted}": count for accepted, count in enumerate(histogram)}
    for depth in range(1, len(histogram)):
        numbers[f"acceptance_rate_per_position_{depth}"] = histogram[depth:].sum() / histogram.sum()
    if "num_drafted" in prompts and (drafted := prompts.num_drafted.sum()):
        numbers["acceptance_rate"] = (prompts.num_emitted - prompts.num_steps).sum() / drafted
    if "step_s" in prompts and prompts.step_s.notna().all():
        step_ms = 1e3 * np.concatenate(prompts.step_s.tolist())
        emitted = np.concatenate(prompts.step_emitted.tolist())
        for name, times in (("step_ms", step_ms), ("token_ms", np.repeat(step_ms / emitted, emitted))):
            ranks = zip(PERCENTILES, np.percentile(times, PERCENTILES), strict=True)
            numbers |= {f"{name}_p{rank}": value for rank, value in ranks}
    return {name: float(value) for name, value in numbers.items()}
