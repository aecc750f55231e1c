"""Table 1: SpecInfer and ResiSpec on d5b3 beside the paper's, and an autoregressive baseline."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import metrics, runs
from analysis.artefact import Artefact, beside, footer, paper, run, texts
from analysis.load import Plan, filters_in, load
from analysis.metric_table import by_cell, definitions, measure, with_figures

TEXTS = texts("table1")
# (verifier, quantity) -> the column of results/reference/table1.csv that has it
PAPER_COLUMNS = {
    ("standard", "accepted_length"): "specinfer_accepted_length",
    ("standard", "tokens_per_s"): "specinfer_tokens_per_s",
    ("resispec", "accepted_length"): "resispec_accepted_length",
    ("resispec", "tokens_per_s"): "resispec_tokens_per_s",
    ("resispec", "accepted_length_gain"): "accepted_length_gain",
    ("resispec", "speedup"): "speedup",
}


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells; every cell has a row. A second table has their runs."""
    results = load(plan.first_runs, metrics.FIELDS)
    figures = paper("table1")

    def rows(row: Mapping[str, Any]) -> pd.DataFrame:
        """The paper's row of the same setting, or if there is none its rows of all data sets."""
        values = {"temperature": row["temperature"], "tree": str(row["tree"])}
        setting = {name: str(row[name]) for name in ("pair", "dataset")}
        return beside(figures if row["decoder"] == "specinfer" else figures[:0], values, setting)

    frame = with_figures(measure(results), PAPER_COLUMNS, rows)
    settings = set(zip(figures.pair, figures.dataset, strict=True))
    is_same = set(zip(frame.pair, frame.dataset, strict=True)) <= settings
    is_same &= not filters_in(results.keys)
    about = ["same_setting" if is_same else "other_setting", "compared"]
    if (frame.verifier == "resispec").any():
        about.insert(0, "biased")
    notes = footer(
        results, plan, [TEXTS[name] for name in about], definitions(metrics.METRICS, results)
    )
    table = by_cell("table1", results, frame, TEXTS["caption"], notes, metrics.METRICS)
    return Artefact((table, *runs.of("table1", plan)))


if __name__ == "__main__":
    raise SystemExit(run("table1", make))
