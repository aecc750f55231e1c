"""The result of a run: the table of the cells that it asked for, and their CSV."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis import audits, long, metrics, table
from analysis.cells import FIRST, tidy
from analysis.load import LABELS, SETTING, Plan, facts_of
from analysis.metric_table import ACROSS_RUNS, RUNS_DIFFER, across_devices, disagreement
from analysis.metrics import Metric
from analysis.stats import Interval, few_prompts
from analysis.table import Column, Found, Gap, Notes, Number, Table
from analysis.terminal import printed

SPEEDUPS = (metrics.SPEEDUP_VS_AUTOREGRESSIVE, metrics.SPEEDUP)
"""The table shows the first of these metrics that any of its cells has."""
PLAIN = (metrics.TOKENS_PER_S, metrics.GAIN)
"""Metrics that are printed without their intervals, which the CSV has."""
OF_GAINS = (
    "Gain: accepted length over the standard rule's with the same decoder and a tree of the same "
    "name (own_121 names another one for each verifier); the tables of artefacts may name another "
    "baseline."
)
MOST_ROWS = 20
"""The largest number of rows of the table on a screen."""


def table_of(
    plans: Sequence[Plan], name: str, report: Callable[[str], str] = lambda _: ""
) -> Table:
    """The table of a run; its frame is that of `analysis.cells.tidy`.

    Columns without a value are left out.

    plans: plans with the requests of this run alone. name: the sweep's name. report: gives the text
    of a complete cell, by its id, whose task is not to decode. Raises InvalidInput for a damaged
    cell.
    """
    frame = tidy(plans)
    is_unaudited = frame.decoder.ne("autoregressive") & frame.verdict.isna()
    is_unaudited &= frame[metrics.ACCEPTED_LENGTH.name].notna()
    frame["verdict"] = frame.verdict.astype(object).mask(is_unaudited, audits.NOT_AUDITED)
    more = list(frame)[len(FIRST) : list(frame).index("status")]
    rows = frame.assign(**{key: frame[key].fillna("") for key in (*LABELS, *more, "verdict")})
    tasks = ["task"] if frame.task.nunique() > 1 else []
    names, fixed = long.split_keys(rows, (*SETTING, *tasks, *more, "tree", "method"))
    measured = [
        metric
        for metric in metrics.METRICS
        if metric.name in frame and frame[metric.name].notna().any()
    ]
    speedups = [metric for metric in SPEEDUPS if metric in measured][:1]
    numbers = [
        metric for metric in (metrics.ACCEPTED_LENGTH, *PLAIN, *speedups) if metric in measured
    ]
    columns = [*long.names(names), *map(_number, numbers)]
    is_other = frame[metrics.ACCEPTED_LENGTH.name].isna() & (frame.status == "done")
    reported = {cell_id: report(cell_id) for cell_id in frame.cell_id[is_other]}
    if any(reported.values()):
        columns.append(
            long.words("reported", "Reported", lambda row: reported.get(row["cell_id"], ""))
        )
    columns += audits.columns(rows)
    columns.append(
        long.words("status", "State", lambda row: str(Gap(row["status"], row["reason"])))
    )
    records = rows.to_dict("records")
    lines = tuple(tuple(column.cell({(): row}) for column in columns) for row in records)
    rates = [
        (repr([row[key] for key in ("pair", *more)]), _interval(row, metrics.TOKENS_PER_S))
        for row in records
        if row["decoder"] == "autoregressive" and not math.isnan(row[metrics.TOKENS_PER_S.name])
    ]
    is_marked = any(_is_marked(row, metric) for row in records for metric in speedups)
    of_times = [f"\\* {RUNS_DIFFER}"] if is_marked else []
    biases = frame.shown_bias.dropna().unique() if "shown_bias" in frame else ()
    is_measured = frame.status.eq("done") & frame[metrics.ACCEPTED_LENGTH.name].notna()
    few = few_prompts(frame.num_prompts[is_measured])
    setting = ["artefact", "part", *SETTING, *more]
    of_devices = across_devices(rows[is_measured], setting)
    of_gains = [OF_GAINS] if metrics.GAIN in numbers else []
    about = (*of_devices, *of_times, *disagreement(rates), *of_gains, *few, *biases)
    notes = Notes(about, stale=tuple(line for plan in plans for line in plan.changed))
    return Table(name, tuple(columns), lines, f"{name}.{fixed}", frame, notes, facts_of(plans))


def _interval(row: Mapping[str, Any], metric: Metric) -> Interval:
    return Interval(*(row[metric.name + bound] for bound in ("", "_lower", "_upper")))


def _is_marked(row: Mapping[str, Any], metric: Metric) -> bool:
    """Whether the row has this metric, and it is a ratio of times not measured in turn."""
    across_runs = row.get(ACROSS_RUNS)
    return isinstance(across_runs, str) and metric.name in across_runs.split()


def _number(metric: Metric) -> Column:
    def cell(rows: Found) -> Number:
        interval = _interval(rows[()], metric)
        number = Number.of(Interval(interval.value) if metric in PLAIN else interval, metric.spec)
        return replace(number, mark="*") if _is_marked(rows[()], metric) else number

    return Column(metric.name, metric.label, "number", cell=cell)


def head(made: Table) -> Table:
    """The table of a run with its first MOST_ROWS rows, and all baselines of these rows."""
    frame = made.frame
    keys = [column.key for column in made.columns if column.kind == "key"]
    keys = [key for key in keys if key not in ("method", "tree")]
    settings = [repr(row) for row in frame[keys].to_numpy().tolist()]
    is_baseline = frame.verifier.eq("standard") | frame.decoder.eq("autoregressive")
    rows = tuple(
        row
        for place, row in enumerate(made.rows)
        if place < MOST_ROWS or (is_baseline[place] and settings[place] in settings[:MOST_ROWS])
    )
    return replace(made, rows=rows)


def written(made: Table, folder: Path) -> str:
    """Write a run's table as CSV and JSON; return the text to print: `head` and the CSV's path."""
    path, _ = table.write(made, folder, ["csv"])
    shown = head(made)
    num_more = len(made.rows) - len(shown.rows)
    rest = f"and {num_more} more in the CSV\n\n" if num_more > 0 else ""
    return f"{printed(shown, str(path))}\n{rest}wrote {path}: every cell with every number\n"
