"""What the cells of `speed` measured, in long form: a row for every entry and quantity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.load import LABELS, Results
from analysis.stats import ABSENT, Interval, paired_gain, ratio
from resispec.trees.search import winners

DESCRIBING = ("entry", "draws", "verifier", "num_nodes", "num_levels")
SUMS = ("whole_s", "num_returned", "decode_s", "num_emitted", "num_steps")
FIELDS = (*DESCRIBING, *SUMS)
"""Of the rows; every list has one value an entry, and what describes entries is the same in all rows."""
BASELINE, FASTEST = "one_token", "fastest"
QUANTITIES = (
    *("tokens_per_s", "ms_per_token", "accepted_length", "speedup_vs_one_token", "share_of_best"),
    *("decoded_per_s", "step_ms"),
)
COLUMNS = (
    *("cell_id", *LABELS, "entry", "draws", "num_nodes", "num_levels", "status", "reason", "num_prompts"),
    *("quantity", "value", "lower", "upper", "wins_from_ratio", "wins_up_to_ratio"),
)


def measure(results: Results) -> pd.DataFrame:
    """One row for every entry of every cell and each of QUANTITIES.

    Entries are in the order in which rows hold them. A cell that is not done has one row without numbers.
    A value is NaN where it means nothing: transformers does not say how many steps it took.
    """
    rows = [row for cell in results.cells.to_dict("records") for row in _of_cell(cell, results)]
    names = [*COLUMNS, *(name for name in results.more if name not in COLUMNS)]
    return pd.DataFrame(rows, columns=names)


def _of_cell(cell: Mapping[str, Any], results: Results) -> Iterator[dict[str, Any]]:
    shared = {name: cell[name] for name in ("cell_id", *results.keys, "status", "reason")}
    prompts = results.rows.get(cell["cell_id"])
    if prompts is None:
        yield shared | {
            "entry": "",
            "draws": "",
            "num_prompts": 0,
            "quantity": QUANTITIES[0],
            "value": np.nan,
        }
        return
    first = prompts.iloc[0]
    names = list(first.entry)
    sums = {name: np.array(prompts[name].tolist(), np.float64) for name in SUMS}  # (prompts, entries)
    ranges = _winning(first, sums)
    rates = sums["num_returned"].sum(0) / sums["whole_s"].sum(0)
    against = {"speedup_vs_one_token": names.index(BASELINE), "share_of_best": int(rates.argmax())}
    for place, name in enumerate(names):
        described = {key: first[key][place] for key in DESCRIBING}
        bounds = dict(
            zip(("wins_from_ratio", "wins_up_to_ratio"), ranges.get(name, (np.nan, np.nan)), strict=True)
        )
        for quantity, found in _quantities(sums, place, against).items():
            row = shared | described | {"num_prompts": len(prompts), "quantity": quantity}
            yield row | vars(found) | bounds


def _quantities(
    sums: Mapping[str, np.ndarray], place: int, against: Mapping[str, int]
) -> dict[str, Interval]:
    """Every quantity of one entry. against: of quantities that compare, the entry that they compare with."""
    own = {name: values[:, place] for name, values in sums.items()}
    rate = (own["num_returned"], own["whole_s"])
    found = {
        "tokens_per_s": ratio(*rate),
        "ms_per_token": ratio(1e3 * own["whole_s"], own["num_returned"]),
        "accepted_length": ratio(own["num_emitted"], own["num_steps"]),
        "decoded_per_s": ratio(own["num_emitted"], own["decode_s"]),
        "step_ms": ratio(1e3 * own["decode_s"], own["num_steps"]),
    }
    for quantity, other in against.items():
        baseline = (sums["num_returned"][:, other], sums["whole_s"][:, other])
        found[quantity] = ABSENT if other == place else paired_gain(rate, baseline)
    return {name: found[name] for name in QUANTITIES}


def _winning(described: Mapping[str, Any], sums: Mapping[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """Of the entries that win at some ratio of costs, see `resispec.trees.search.winners`, between which."""
    levels, names = list(described["num_levels"]), list(described["entry"])
    ours = [place for place, count in enumerate(levels) if count and names[place] != FASTEST]
    tokens = sums["num_emitted"].sum(0)[ours] / sums["num_steps"].sum(0)[ours]
    found = winners([(levels[place], length) for place, length in zip(ours, tokens.tolist(), strict=True)])
    return {names[ours[one.index]]: (one.from_ratio, one.to_ratio) for one in found}
