"""Table 4: the paper's KL divergence, a random proxy's, and the audited deviation of the output."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import long
from analysis.artefact import Artefact, beside, footer, paper, run, texts
from analysis.load import Plan, filters_in, load
from analysis.metric_table import with_figures
from analysis.published import Compared
from analysis.stats import ABSENT, BRACKETS, Interval, ratio
from analysis.table import Table, number

TEXTS = texts("table4")
# verifier -> its name in results/reference/table4.csv
PAPER_METHODS = {"resispec": "resispec", "standard": "specinfer"}
PAPER_KL = {1.0: "kl_t1.0", 0.6: "kl_t0.6"}
"""Temperature -> the column of the paper's figures."""
PAPER_COLUMNS = {(verifier, "paper_kl"): "kl" for verifier in PAPER_METHODS}
PAPER_PAIR = "llama2_7b__jf68m"
SHOWN = (
    long.figure("D_KL (paper)", ".1e", "paper_kl"),
    long.number("D_KL as published", ".1e", "paper_kl", brackets=False),
    long.number("D_KL, random proxy", ".1e", "random_proxy_kl", brackets=False),
    long.number("Audited TV", ".3f", "total_variation"),
    long.number("z", ".1f", "total_variation_z", brackets=False),
    long.number("Audited D_KL, at least", ".4f", "kl_at_least"),
    long.number("plug-in", ".4f", "kl_plug_in", brackets=False),
)
FIELDS = (
    *("num_prefixes", "num_tuples", "paper_kl_resispec", "paper_kl_standard", "paper_kl_random"),
    *("total_variation", "total_variation_error", "kl_at_least", "kl_plug_in"),
)


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells; every cell has a row."""
    results = load(plan, FIELDS)
    figures = paper("table4")

    def printed(row: Mapping[str, Any]) -> pd.DataFrame:
        """The paper's row of the same setting, or if there is none its rows of all data sets."""
        setting = {"dataset": str(row["dataset"]) if row["pair"] == PAPER_PAIR else ""}
        rows = beside(figures, {"method": PAPER_METHODS[row["verifier"]]}, setting)
        return rows.rename(columns={PAPER_KL.get(row["temperature"], ""): "kl"})

    cells = ((about, _quantities(about["verifier"], rows)) for about, rows in results.each())
    records = [record for about, numbers in cells for record in long.records(about, numbers)]
    frame = with_figures(pd.DataFrame(records), PAPER_COLUMNS, printed)
    varying, fixed = long.split_keys(results.cells, (*results.setting, "method"))
    lines = long.tabulate(frame, ["cell_id", *results.keys], [*long.names(varying), *SHOWN])
    is_same = set(results.cells.pair) == {PAPER_PAIR} and set(results.cells.dataset) <= set(
        figures.dataset
    )
    is_same &= not filters_in(results.keys)
    tuples = dict.fromkeys(
        f"{count:,}" for rows in results.rows.values() for count in rows.num_tuples
    )
    visible = number(4 * max(map(_pooled_error, results.rows.values()), default=math.nan), ".3f")
    detects = TEXTS["detects"].format(tuples=", ".join(tuples) or "no", visible=visible)
    about = (detects, TEXTS["same_setting" if is_same else "other_setting"])
    table = Table(
        "table4", *lines, TEXTS["caption"] + fixed, frame, footer(results, plan, about, [BRACKETS])
    )
    return Artefact((table,), compared=Compared("total_variation", "total variations", spec=".3f"))


def _quantities(verifier: str, rows: pd.DataFrame | None) -> dict[str, Interval]:
    """All quantities of a cell; NaN without rows, paper_kl also without the verifier's proxy."""

    def mean(name: str) -> Interval:
        if rows is None or name not in rows:
            return ABSENT
        magnitude = abs if name.startswith("paper_kl") else float
        return ratio([sum(map(magnitude, values)) for values in rows[name]], rows.num_prefixes)

    variation, error = mean("total_variation"), 0.0 if rows is None else _pooled_error(rows)
    return {
        "paper_kl": mean(f"paper_kl_{verifier}"),
        "random_proxy_kl": mean("paper_kl_random"),
        "total_variation": variation,
        "total_variation_z": Interval(variation.value / error if error else math.nan),
        "kl_at_least": mean("kl_at_least"),
        "kl_plug_in": mean("kl_plug_in"),
    }


def _pooled_error(rows: pd.DataFrame) -> float:
    """Standard error of the mean total variation; independent prefixes' errors add in squares."""
    squares = sum(error**2 for errors in rows.total_variation_error for error in errors)
    return math.sqrt(squares) / int(rows.num_prefixes.sum())


if __name__ == "__main__":
    raise SystemExit(run("table4", make))
