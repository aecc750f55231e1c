"""Table 4: the paper's KL divergence, the same with a random proxy, and the audited deviation of the law that is emitted.

Usage: python -m analysis.table4 --profile embedded
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels, paper
from analysis.bootstrap import Interval
from analysis.law_load import LawResults, load_rows
from analysis.law_report import LawTable, bracketed, footer, gap, number, publish, ratio
from analysis.load import LABELS
from analysis.script import run
from resispec.law_rows import KlRow

# verifier -> the rows' column with the proxy that the paper gives it, and its name in results/paper/table4.csv
PROXIES = {"resispec": "paper_kl_resispec", "standard": "paper_kl_standard"}
PUBLISHED = {"resispec": "resispec", "standard": "specinfer"}
COLUMNS = [
    "cell_id",
    *LABELS,
    "status",
    "reason",
    "num_prompts",
    "quantity",
    "value",
    "lower",
    "upper",
    "paper_low",
]
COLUMNS += ["paper_high"]
# quantity -> the printed header and number format
SHOWN = {
    "paper_kl": ("D_KL as published", ".1e"),
    "random_proxy_kl": ("D_KL, random proxy", ".1e"),
    "total_variation": ("Audited TV", ".3f"),
    "total_variation_z": ("z", ".1f"),
    "kl_at_least": ("Audited D_KL, at least", ".4f"),
    "kl_plug_in": ("plug-in", ".4f"),
}
HEADERS = ["Pair", "T", "Data set", "Method", "D_KL (paper)", *(header for header, _ in SHOWN.values())]
DETECTS = (
    "What each column can and cannot detect. D_KL as published (mean of |D_KL| over contexts, float32) repeats Appendix C "
    "of the paper, which rebuilds the output law from one fixed proxy k per step. Every step adds min(k, R) + (R - min(k, R)) "
    "= R, so the rebuilt law is p for every proxy: the column measures rounding, and no bias of any size can show in it. "
    "D_KL, random proxy is the control: proxies drawn at random, which know neither model, score the same. Audited TV is "
    "the total variation between p and the law that the verifier emits, averaged over {tuples} sampled sibling tuples a "
    "context and cross-fitted: its mean is 0 for an exact rule and at most the true value otherwise; z is the same in "
    "standard errors, and above 4 the verifier is not exact. It cannot see a deviation below about {visible:.3f} (4 standard "
    "errors here), nor one at deeper nodes or with other numbers of siblings. Audited D_KL merges the tokens into two sets, "
    "so both of its columns are lower bounds of the divergence in nats: at least moves the measured masses two standard "
    "errors toward p first, the plug-in does not, and noise alone makes it slightly positive."
)
SAME_SETTING = "D_KL (paper): the published D_KL for the same pair, data set and temperature."
OTHER_SETTING = (
    "D_KL (paper): the published D_KL for Llama-2-7B + 68M. Where a row has another pair or data set, it shows the range over "
    "CNN/DM, OpenWebText and C4 at the same temperature: other models and other text, given for orientation."
)


def build(results: LawResults[KlRow], profile: str, command: str) -> LawTable:
    """The table of the loaded cells; every cell has a row."""
    published = paper.read("table4", ("method", "dataset", "kl_t1.0", "kl_t0.6"))
    records: list[dict[str, Any]] = []
    lines = []
    for cell in results.cells.to_dict("records"):
        rows = results.rows.get(cell["cell_id"], [])
        measured = _quantities(cell["verifier"], rows)
        low, high = _published(cell, published)
        lines.append(_line(cell, measured, _range(low, high)))
        shared = {key: cell[key] for key in ("cell_id", *LABELS, "status", "reason")} | {
            "num_prompts": len(rows)
        }
        for quantity in SHOWN:
            figures = (low, high) if quantity == "paper_kl" else (np.nan, np.nan)
            found = vars(measured[quantity]) | dict(zip(("paper_low", "paper_high"), figures, strict=True))
            records.append(shared | {"quantity": quantity, **found})
    shown = pd.DataFrame(lines, columns=HEADERS)
    if len(set(results.cells.pair)) == 1:
        shown = shown.drop(columns="Pair")
    same = set(results.cells.pair) <= {"llama2_7b__jf68m"} and set(results.cells.dataset) <= set(
        published.dataset
    )
    every = [row for rows in results.rows.values() for row in rows]
    errors = [_pooled_error(rows) for rows in results.rows.values()]
    detects = DETECTS.format(
        tuples=", ".join(dict.fromkeys(f"{row.num_tuples:,}" for row in every)) or "no",
        visible=4 * max(errors, default=math.nan),
    )
    return LawTable(
        stem="table4",
        frame=pd.DataFrame(records, columns=COLUMNS),
        shown=shown,
        num_keys=HEADERS.index("D_KL (paper)") - (len(HEADERS) - len(shown.columns)),
        caption=f"Table 4 of the paper, {profile} profile: does the output law equal the target's? Divergences in nats.",
        notes=(detects, SAME_SETTING if same else OTHER_SETTING, *footer(results, profile, command)),
    )


def _quantities(verifier: str, rows: list[KlRow]) -> dict[str, Interval]:
    """Every quantity of SHOWN; NaN without rows, and without a proxy that the paper gives the verifier."""
    absent = Interval(np.nan, np.nan, np.nan)
    if not rows:
        return dict.fromkeys(SHOWN, absent)
    contexts = [row.num_contexts for row in rows]

    def mean(name: str, magnitude: bool = False) -> Interval:
        return ratio(
            [sum(map(abs, getattr(row, name)) if magnitude else getattr(row, name)) for row in rows], contexts
        )

    variation = mean("total_variation")
    return {
        "paper_kl": mean(PROXIES[verifier], magnitude=True) if verifier in PROXIES else absent,
        "random_proxy_kl": mean("paper_kl_random", magnitude=True),
        "total_variation": variation,
        "total_variation_z": Interval(variation.value / _pooled_error(rows), np.nan, np.nan),
        "kl_at_least": mean("kl_at_least"),
        "kl_plug_in": mean("kl_plug_in"),
    }


def _pooled_error(rows: list[KlRow]) -> float:
    """Standard error of the mean total variation: contexts are sampled independently, so errors add in squares."""
    squares = sum(error**2 for row in rows for error in row.total_variation_error)
    return math.sqrt(squares) / sum(row.num_contexts for row in rows)


def _line(cell: dict[str, Any], measured: dict[str, Interval], published: str) -> list[str]:
    keys = [labels.text(key, cell[key]) for key in ("pair", "temperature", "dataset")]
    method = labels.method(cell["decoder"], cell["verifier"])
    if cell["status"] != "done":
        return [*keys, method, published, gap(cell), *[labels.ABSENT] * (len(SHOWN) - 1)]
    with_interval = ("total_variation", "kl_at_least")
    numbers = [
        bracketed(measured[name], spec) if name in with_interval else number(measured[name].value, spec)
        for name, (_, spec) in SHOWN.items()
    ]
    return [*keys, method, published, *numbers]


def _published(cell: dict[str, Any], published: pd.DataFrame) -> tuple[float, float]:
    """The lowest and highest published figure for a cell: one figure for the paper's own setting."""
    column = f"kl_t{cell['temperature']:.1f}"
    rows = published[published.method == PUBLISHED.get(cell["verifier"])]
    if column not in published or rows.empty:
        return math.nan, math.nan
    exact = rows[(rows.dataset == cell["dataset"]) & (cell["pair"] == "llama2_7b__jf68m")]
    figures = (rows if exact.empty else exact)[column]
    return figures.min(), figures.max()


def _range(low: float, high: float) -> str:
    if math.isnan(low):
        return labels.ABSENT
    return f"{low:.1e}" if low == high else f"{low:.1e}–{high:.1e}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return run("table4", build, arguments, read=partial(load_rows, row_type=KlRow), publish=publish)


if __name__ == "__main__":
    sys.exit(main())
