"""Table 4: the paper's KL divergence, the same with a random proxy, and the audited deviation of the output.

Usage: python -m analysis.table4 --profile embedded
"""

from __future__ import annotations

import math
import sys
from typing import Any

import pandas as pd

from analysis.artefact import Artefact, command, footer, key_cells, key_columns, paper, split_keys
from analysis.load import SETTING, Plan, load
from analysis.published import Compared
from analysis.stats import ABSENT, BRACKETS, Interval, ratio
from analysis.table import Cell, Column, Gap, Number, Paper, Table, number

# verifier -> the rows' field with the proxy that the paper gives it; its name in results/reference/table4.csv
PROXIES = {"resispec": "paper_kl_resispec", "standard": "paper_kl_standard"}
PAPER_METHODS = {"resispec": "resispec", "standard": "specinfer"}
PAPER_PAIR = "llama2_7b__jf68m"
# quantity -> the printed header and number format
SHOWN = {
    "paper_kl": ("D_KL as published", ".1e"),
    "random_proxy_kl": ("D_KL, random proxy", ".1e"),
    "total_variation": ("Audited TV", ".3f"),
    "total_variation_z": ("z", ".1f"),
    "kl_at_least": ("Audited D_KL, at least", ".4f"),
    "kl_plug_in": ("plug-in", ".4f"),
}
WITH_INTERVAL = ("total_variation", "kl_at_least")
FIELDS = (
    *("num_prefixes", "num_tuples", *PROXIES.values(), "paper_kl_random"),
    *("total_variation", "total_variation_error", "kl_at_least", "kl_plug_in"),
)
CAPTION = "Table 4 of the paper, {} profile: does the output law equal the target's? Divergences in nats."
DETECTS = (
    "What each column can and cannot detect. D_KL as published (mean of |D_KL| over prefixes, float32) "
    "repeats Appendix C of the paper, which rebuilds the output law from one fixed proxy k per step. Every "
    "step adds min(k, R) + (R - min(k, R)) = R, so the rebuilt law is p for every proxy: the column "
    "measures rounding, and no bias of any size can show in it. D_KL, random proxy is the control: proxies "
    "drawn at random, which know neither model, score the same. Audited TV is the total variation between p "
    "and the law that the verifier emits, averaged over {tuples} sampled sibling tuples a prefix and "
    "cross-fitted: its mean is 0 for an exact rule and at most the true value otherwise; z is the same in "
    "standard errors, and above 4 the verifier is not exact. It cannot see a deviation below about "
    "{visible} (4 standard errors here), nor one at deeper nodes or with other numbers of siblings. Audited "
    "D_KL merges the tokens into two sets, so both of its columns are lower bounds of the divergence in "
    "nats: at least moves the measured masses two standard errors toward p first, the plug-in does not, and "
    "noise alone makes it slightly positive."
)
SAME_SETTING = "D_KL (paper): the paper's D_KL for the same pair, data set and temperature."
OTHER_SETTING = (
    "D_KL (paper): the paper's D_KL for Llama-2-7B + 68M. Where a row has another pair or data set, it "
    "shows the range over CNN/DM, OpenWebText and C4 at the same temperature: other models and other text, "
    "given for orientation."
)


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells; every cell has a row."""
    results = load(plan, FIELDS)
    figures = paper("table4", ("method", "dataset", "kl_t1.0", "kl_t0.6"))
    varying, fixed = split_keys(results.cells, (*SETTING, *results.more, "method"))
    records, lines = [], []
    for cell in results.cells.to_dict("records"):
        rows = results.rows.get(cell["cell_id"])
        measured = dict.fromkeys(SHOWN, ABSENT) if rows is None else _quantities(cell["verifier"], rows)
        published = _paper(cell, figures)
        numbers: list[Cell] = [
            Number.of(measured[name] if name in WITH_INTERVAL else Interval(measured[name].value), spec)
            for name, (_, spec) in SHOWN.items()
        ]
        if rows is None:
            numbers[0] = Gap(cell["status"], cell["reason"])
        lines.append((*key_cells(cell, varying), Paper(*published, ".1e"), *numbers))
        for quantity, interval in measured.items():
            low, high = published if quantity == "paper_kl" else (math.nan, math.nan)
            record = results.about(cell) | {"quantity": quantity} | vars(interval)
            records.append(record | {"paper_low": low, "paper_high": high})
    columns = (
        *key_columns(varying),
        Column("paper_kl", "D_KL (paper)", "paper"),
        *(Column(name, header, "number") for name, (header, _) in SHOWN.items()),
    )
    is_same = set(results.cells.pair) == {PAPER_PAIR} and set(results.cells.dataset) <= set(figures.dataset)
    tuples = dict.fromkeys(f"{count:,}" for rows in results.rows.values() for count in rows.num_tuples)
    visible = 4 * max(map(_pooled_error, results.rows.values()), default=math.nan)
    detects = DETECTS.format(tuples=", ".join(tuples) or "no", visible=number(visible, ".3f"))
    about = (detects, SAME_SETTING if is_same else OTHER_SETTING)
    caption, notes = CAPTION.format(plan.profile) + fixed, footer(results, plan, about, [BRACKETS])
    table = Table("table4", columns, tuple(lines), caption, pd.DataFrame(records), notes)
    return Artefact((table,), compared=Compared("total_variation", "total variations", spec=".3f"))


def _quantities(verifier: str, rows: pd.DataFrame) -> dict[str, Interval]:
    """Every quantity of SHOWN; NaN without a proxy that the paper gives the verifier."""

    def mean(name: str, magnitude: bool = False) -> Interval:
        sums = [sum(map(abs, values)) if magnitude else sum(values) for values in rows[name]]
        return ratio(sums, rows.num_prefixes)

    variation, error = mean("total_variation"), _pooled_error(rows)
    return {
        "paper_kl": mean(PROXIES[verifier], magnitude=True) if verifier in PROXIES else ABSENT,
        "random_proxy_kl": mean("paper_kl_random", magnitude=True),
        "total_variation": variation,
        "total_variation_z": Interval(variation.value / error if error else math.nan),
        "kl_at_least": mean("kl_at_least"),
        "kl_plug_in": mean("kl_plug_in"),
    }


def _pooled_error(rows: pd.DataFrame) -> float:
    """Standard error of the mean total variation; prefixes are independent, so errors add in squares."""
    squares = sum(error**2 for errors in rows.total_variation_error for error in errors)
    return math.sqrt(squares) / int(rows.num_prefixes.sum())


def _paper(cell: dict[str, Any], figures: pd.DataFrame) -> tuple[float, float]:
    """The paper's lowest and highest figure for a cell: one figure for its own setting."""
    column = f"kl_t{cell['temperature']:.1f}"
    rows = figures[figures.method == PAPER_METHODS.get(cell["verifier"])]
    if column not in figures or rows.empty:
        return math.nan, math.nan
    exact = rows[(rows.dataset == str(cell["dataset"])) & (cell["pair"] == PAPER_PAIR)]
    found = (rows if exact.empty else exact)[column]
    return found.min(), found.max()


main = command("table4", make)


if __name__ == "__main__":
    sys.exit(main())
