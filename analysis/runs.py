"""Runs of the same cells with other base seeds: their numbers side by side, and their spread."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analysis import audits, long, metrics
from analysis.artefact import footer, texts
from analysis.load import SETTING, Plan, Request, Results, load
from analysis.long import RUN
from analysis.metric_table import baseline_of, measure
from analysis.stats import Interval
from analysis.table import Column, Found, Number, Paper, Table
from resispec.errors import InvalidInput

TEXTS = texts("runs")
SEED = "seed"
LENGTH, GAIN = metrics.ACCEPTED_LENGTH, metrics.GAIN
QUANTITIES = (LENGTH.name, metrics.TOKENS_PER_S.name, GAIN.name, metrics.SPEEDUP.name)
SPREADS = ("mean", "range", "sd")
"""Numbers of all runs of a cell: each is a quantity, like "accepted_length_mean"."""


def of(stem: str, plan: Plan) -> tuple[Table, ...]:
    """The table STEM_runs of an artefact's cells; none if no cell was asked for with other seeds.

    Its frame has a row for each cell and quantity with its run and base seed, and rows without
    these two for SPREADS, which are absent where a run is not done. The verdict is that of the
    audited run. Raises InvalidInput if runs of a cell measured other prompts.
    """
    again = {_place(cell) for cell in plan.requests if cell.is_other_run}
    plan = plan.only(lambda cell: _place(cell) in again)
    results = load(plan, metrics.FIELDS)
    seeds = sorted(set(results.cells.get(SEED, ())), key=lambda seed: int(seed or -1))
    if len(seeds) < 2:
        return ()
    _check_same_prompts(results)
    keys = [key for key in results.keys if key != SEED]
    frame = _frame(results, measure(results, baseline_of(plan)), keys, seeds)
    varying, fixed = long.split_keys(
        results.timed, (*SETTING, *(key for key in results.more if key != SEED), "tree", "method")
    )
    columns = [*long.names(varying), *_columns(len(seeds)), *audits.columns(frame)]
    lines = long.tabulate(frame, keys, columns, ("quantity", RUN))
    names = {
        "table": stem.replace("table", "Table "),
        "seeds": ", ".join(dict.fromkeys(frame[SEED][frame[SEED] != ""])),
        "shared": _shared(results),
    }
    about = [TEXTS["about"].format(**names), *_compared(frame, keys)]
    notes = footer(results, plan, about, [TEXTS["definitions"]])
    caption = TEXTS["caption"].format(**names) + fixed
    return (Table(f"{stem}_runs", *lines, caption, frame, notes),)


def _place(cell: Request) -> str:
    """The labels that a cell shares with its further runs, as text."""
    return repr([(key, str(value)) for key, value in cell.labels.items() if key != SEED])


def _check_same_prompts(results: Results) -> None:
    """Raise InvalidInput unless all cells of a pair and data set measured the same prompts."""
    for _, cell_ids in results.cells.groupby(["pair", "dataset"], sort=False).cell_id:
        done = [cell_id for cell_id in dict.fromkeys(cell_ids) if cell_id in results.rows]
        prompts = {cell_id: results.rows[cell_id].prompt_id.tolist() for cell_id in done}
        for cell_id in done:
            if prompts[cell_id] != prompts[done[0]]:
                contrast = f"{len(prompts[cell_id])} prompts, and not the {len(prompts[done[0]])}"
                raise InvalidInput(
                    f"cell {cell_id}: measured {contrast} of {done[0]}; allowed: runs of the same"
                )


def _shared(results: Results) -> str:
    """Words for whether runs share random numbers: a prompt's seed is its base seed and place."""
    bases = sorted({int((rows.seed - rows.prompt_index).iloc[0]) for rows in results.rows.values()})
    count = max(map(len, results.rows.values()), default=0)
    is_apart = all(other - one >= count for one, other in pairwise(bases))
    return str(TEXTS["apart" if is_apart else "close"].format(count=count))


def _frame(
    results: Results, measured: pd.DataFrame, keys: Sequence[str], seeds: Sequence[str]
) -> pd.DataFrame:
    """The long frame of all runs. seeds: labels, in the order of the runs."""
    bases = {
        cell_id: str((rows.seed - rows.prompt_index).iloc[0])
        for cell_id, rows in results.rows.items()
    }
    records: list[dict[str, Any]] = []
    measured = measured[measured.quantity.isin(QUANTITIES)]
    for _, of_cell in measured.groupby(keys, sort=False):
        verdict = next(filter(None, of_cell.verdict), "")
        for row in of_cell.to_dict("records"):
            seed = bases.get(row["cell_id"], row[SEED])
            own = {RUN: seeds.index(row[SEED]) + 1, SEED: seed, "verdict": verdict}
            records.append(row | own)
        about = {key: of_cell[key].iloc[0] for key in keys} | dict.fromkeys((RUN, SEED), "")
        about |= {"cell_id": "", "status": "done", "reason": "", "verdict": verdict}
        for quantity, rows in of_cell.groupby("quantity", sort=False):
            values = rows.value.to_numpy() if len(rows) == len(seeds) else np.array([np.nan])
            numbers = (values.mean(), np.ptp(values), values.std(ddof=len(values) > 1))
            spreads = {
                f"{quantity}_{name}": Interval(float(number))
                for name, number in zip(SPREADS, numbers, strict=True)
            }
            records += long.records(about, spreads)
    names = ["cell_id", *keys, RUN, SEED, "status", "reason", "num_prompts", "quantity"]
    frame = pd.DataFrame(records, columns=[*names, "value", "lower", "upper", "verdict"])
    return frame.astype({"num_prompts": "Int64"})


def _columns(count: int) -> list[Column]:
    """The columns of accepted lengths, their spread, and gains. count: of runs."""
    spec, numbers = LENGTH.spec, range(1, count + 1)
    runs = [
        long.number(f"Run {run}", spec, LENGTH.name, run, of=str(run), brackets=False)
        for run in numbers
    ]
    headers = zip(SPREADS, ("Mean", "Range", "SD"), strict=True)
    spreads = [long.number(header, spec, f"{LENGTH.name}_{name}", "") for name, header in headers]

    def width(rows: Found) -> Number:
        return Number(_width(rows.get((LENGTH.name, 1), long.NO_ROW)), spec=spec)

    def gain(rows: Found) -> Paper:
        gains = [rows.get((GAIN.name, run), long.NO_ROW)["value"] for run in numbers]
        return Paper(float(np.min(gains)), float(np.max(gains)), GAIN.spec)  # none if one lacks

    return [
        *runs,
        *spreads,
        Column("width", "Width", "number", cell=width),
        Column(GAIN.name, GAIN.label, "number", cell=gain),
    ]


def _width(row: Mapping[str, Any]) -> float:
    """The width of a row's interval over prompts; NaN without one."""
    return float(row["upper"] - row["lower"])


def _compared(frame: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """The note that counts the rows whose runs are closer together than an interval is wide."""
    counts = []
    for _, rows in frame.groupby(list(keys), sort=False):
        [spread] = rows.value[rows.quantity == f"{LENGTH.name}_range"]
        first = rows[(rows.quantity == LENGTH.name) & (rows[RUN] == 1)]
        widths = [_width(row) for row in first.to_dict("records")]
        counts += [spread < width for width in widths if spread == spread and width == width]
    return [TEXTS["compared"].format(count=sum(counts), total=len(counts))] if counts else []
