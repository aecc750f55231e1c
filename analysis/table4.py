"""Table 4: the paper's KL divergence, the same with a random proxy, and the audited deviation of the output.

Usage: python -m analysis.table4 --profile embedded
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels, paper, script
from analysis.load import SETTING, Plan, load
from analysis.published import Compared
from analysis.report import Table, footer, key_texts, split_keys
from analysis.stats import ABSENT, BRACKETS, Interval, ratio

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


def make(plan: Plan) -> script.Artefact:
    """The table of the plan's cells; every cell has a row."""
    results = load(plan, FIELDS)
    figures = paper.read("table4", ("method", "dataset", "kl_t1.0", "kl_t0.6"))
    varying, fixed = split_keys(results.cells, (*SETTING, *results.more, "method"))
    records, lines = [], []
    for cell in results.cells.to_dict("records"):
        rows = results.rows.get(cell["cell_id"])
        measured = dict.fromkeys(SHOWN, ABSENT) if rows is None else _quantities(cell["verifier"], rows)
        published = _paper(cell, figures)
        lines.append([*key_texts(cell, varying), labels.between(*published, ".1e"), *_line(cell, measured)])
        shared = {name: cell[name] for name in ("cell_id", *results.keys, "status", "reason")}
        shared["num_prompts"] = 0 if rows is None else len(rows)
        for quantity, interval in measured.items():
            low, high = published if quantity == "paper_kl" else (np.nan, np.nan)
            records.append(
                shared | {"quantity": quantity} | vars(interval) | {"paper_low": low, "paper_high": high}
            )
    header = [labels.header(key) for key in varying]
    header += ["D_KL (paper)", *(header for header, _ in SHOWN.values())]
    is_same = set(results.cells.pair) == {PAPER_PAIR} and set(results.cells.dataset) <= set(figures.dataset)
    notes = (_detects(results.rows), SAME_SETTING if is_same else OTHER_SETTING)
    caption = CAPTION.format(plan.profile)
    table = Table(
        stem="table4",
        frame=pd.DataFrame(records),
        shown=pd.DataFrame(lines, columns=header),
        num_keys=len(varying),
        caption=caption + fixed,
        notes=(*notes, *footer(results, plan, BRACKETS)),
    )
    return script.Artefact((table,), compared=Compared("total_variation", "total variations", spec=".3f"))


def _detects(rows: dict[str, pd.DataFrame]) -> str:
    tuples = dict.fromkeys(f"{count:,}" for frame in rows.values() for count in frame.num_tuples)
    visible = 4 * max((_pooled_error(frame) for frame in rows.values()), default=math.nan)
    return DETECTS.format(tuples=", ".join(tuples) or "no", visible=labels.number(visible, ".3f"))


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


def _line(cell: dict[str, Any], measured: dict[str, Interval]) -> list[str]:
    """The printed numbers of a cell."""
    if cell["status"] != "done":
        return [labels.gap(cell), *[labels.ABSENT] * (len(SHOWN) - 1)]
    return [
        labels.interval(measured[name], spec)
        if name in WITH_INTERVAL
        else labels.number(measured[name].value, spec)
        for name, (_, spec) in SHOWN.items()
    ]


def _paper(cell: dict[str, Any], figures: pd.DataFrame) -> tuple[float, float]:
    """The paper's lowest and highest figure for a cell: one figure for its own setting."""
    column = f"kl_t{cell['temperature']:.1f}"
    rows = figures[figures.method == PAPER_METHODS.get(cell["verifier"])]
    if column not in figures or rows.empty:
        return math.nan, math.nan
    exact = rows[(rows.dataset == cell["dataset"]) & (cell["pair"] == PAPER_PAIR)]
    found = (rows if exact.empty else exact)[column]
    return found.min(), found.max()


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("table4", make, arguments)


if __name__ == "__main__":
    sys.exit(main())
