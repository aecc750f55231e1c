"""The metrics of cells that decode, each declared once.

To add a metric, add a field to the rows that the task writes (experiments/tasks/decode.py), and a
definition to METRICS here. The metric is then a quantity of the CSVs and a column of the tables.
Numbers without an interval and a column are those of `of_cell`, for the CSVs of sweeps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import pandas as pd

from analysis.stats import ABSENT, Interval, across_runs, paired_gain, ratio


@dataclass(frozen=True)
class Metric:
    """One number of a table's row: a field's sum over the prompts, divided by another field's.

    label: the column's header. spec: format of our number. definition: the text in the notes. over:
    "" for the ratio itself; "standard" or "autoregressive" for the ratio over that of this
    baseline. A metric without a numerator is not derived from a cell's own rows; its artefact
    measures it.
    """

    name: str
    label: str
    definition: str
    numerator: str = ""
    denominator: str = ""
    spec: str = ".2f"
    over: str = ""

    def of(self, prompts: pd.DataFrame, baseline: pd.DataFrame | None = None) -> Interval:
        """A cell's metric; with a baseline, its ratio over the baseline's, paired by prompt.

        The interval of a ratio of times also covers the differences between runs, unless one
        process timed both cells in turn. It is ABSENT for cells whose times do not compare.
        """
        sums = (prompts[self.numerator], prompts[self.denominator])
        if baseline is None:
            return ratio(*sums)
        if self.is_timed and not comparable(prompts, baseline):
            return ABSENT
        gain = paired_gain(sums, (baseline[self.numerator], baseline[self.denominator]))
        return across_runs(gain) if self.is_across_runs(prompts, baseline) else gain

    def is_across_runs(self, prompts: pd.DataFrame, baseline: pd.DataFrame) -> bool:
        """Whether the metric is a ratio of times of cells that no process timed in turn."""
        return self.is_timed and not timed_together(prompts, baseline)

    @property
    def is_of_every_cell(self) -> bool:
        """Whether it is derived from FIELDS alone."""
        return {self.numerator, self.denominator} <= {*FIELDS}

    def is_in(self, prompts: pd.DataFrame) -> bool:
        """Whether all of a cell's rows have the metric's fields."""
        known = set(prompts) - set(prompts.attrs.get("partial", ()))
        return {self.numerator, self.denominator} <= known

    @property
    def is_timed(self) -> bool:
        """Whether the metric is a rate per second."""
        return self.denominator.endswith("_s")


TOKENS = {"numerator": "num_emitted", "denominator": "num_steps"}
RATE = {"numerator": "num_emitted", "denominator": "decode_s"}

ACCEPTED_LENGTH = Metric(
    "accepted_length",
    "Accepted length",
    "tokens emitted per forward of the target, the resampled or bonus token included (all emitted "
    "tokens over all steps)",
    **TOKENS,
)
TOKENS_PER_S = Metric(
    "tokens_per_s",
    "Tokens/s",
    "emitted tokens over decoding seconds, after warm-up, without prefill; tokens of the last step "
    "beyond the limit or an end count, too",
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
"""All metrics, in the order of the columns."""
FIELDS = ("num_emitted", "num_steps", "decode_s")
"""The fields that the rows of every cell that decodes have."""
PERCENTILES = (50, 90, 99)
"""Percentiles of the times of steps and tokens."""


def shown(columns: Iterable[Metric], rows: Iterable[pd.DataFrame]) -> list[Metric]:
    """The metrics without those of METRICS whose fields none of the rows has.

    So a metric that was added later changes no table of cells that were measured before.
    """
    tables = list(rows)
    return [
        metric
        for metric in columns
        if metric not in METRICS or metric.is_of_every_cell or any(map(metric.is_in, tables))
    ]


def decoded(rows: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The rows of cells that decode, by id.

    A race has the same fields as lists, but it has no histogram.
    """
    names = {*FIELDS, "histogram"}
    return {cell_id: prompts for cell_id, prompts in rows.items() if names <= set(prompts)}


def timed_together(*cells: pd.DataFrame) -> bool:
    """Whether one process timed each prompt of these cells in turn.

    cells: the rows of the same prompts.

    Rows of earlier versions have no `timed_by`: their cells were timed one after another.
    """
    processes = [
        list(prompts["timed_by"]) if "timed_by" in prompts else [None] for prompts in cells
    ]
    return not pd.isna(processes[0]).any() and all(names == processes[0] for names in processes)


def comparable(*cells: pd.DataFrame) -> bool:
    """Whether the times of these cells compare.

    They do if one process timed them in turn, or if each was measured on one machine in one way,
    the same for all. cells: their rows, with `machines` in `attrs`, see `load`.
    """
    if timed_together(*cells):
        return True
    machines = [prompts.attrs.get("machines", frozenset()) for prompts in cells]
    return len(machines[0]) <= 1 and all(found == machines[0] for found in machines)


def of_cell(prompts: pd.DataFrame) -> dict[str, float]:
    """Numbers of a decoded cell beside METRICS, as far as its rows have the fields for them.

    `acceptance_rate`: accepted drafted tokens over drafted ones. `acceptance_histogram_K`: steps
    that accepted K drafted tokens. `acceptance_rate_per_position_K`: the share of steps that
    accepted the drafted token of depth K, from 1. `step_ms_pN`: percentiles of a step's
    milliseconds. `token_ms_pN`: the same over emitted tokens, each with an equal share of its step.
    """
    # A prompt's counts end at the longest of its own steps.
    histogram = [sum(counts) for counts in zip_longest(*prompts.histogram, fillvalue=0)]
    numbers = {
        f"acceptance_histogram_{accepted}": count for accepted, count in enumerate(histogram)
    }
    for depth in range(1, len(histogram)):
        numbers[f"acceptance_rate_per_position_{depth}"] = sum(histogram[depth:]) / sum(histogram)
    # rows of an earlier version, as of a resumed cell, lack it
    drafted = prompts.num_drafted.astype(float).sum(skipna=False) if "num_drafted" in prompts else 0
    if drafted > 0:
        numbers["acceptance_rate"] = (prompts.num_emitted - prompts.num_steps).sum() / drafted
    if "step_s" in prompts and prompts.step_s.notna().all():
        step_ms = 1e3 * np.concatenate(prompts.step_s.tolist())
        emitted = np.concatenate(prompts.step_emitted.tolist())
        for name, times in (
            ("step_ms", step_ms),
            ("token_ms", np.repeat(step_ms / emitted, emitted)),
        ):
            ranks = zip(PERCENTILES, np.percentile(times, PERCENTILES), strict=True)
            numbers |= {f"{name}_p{rank}": value for rank, value in ranks}
    return {name: float(value) for name, value in numbers.items()}
