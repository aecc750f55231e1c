"""Headline of the page: the measured rows behind its verdict and its facts,
and bars of accepted lengths.

`verdict.html.j2` puts them into words.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from analysis import labels
from analysis.artefact import paper
from analysis.audits import of_resispec
from analysis.load import filters_in, with_filters_off
from analysis.metrics import ACCEPTED_LENGTH, GAIN, SPEEDUP, SPEEDUP_VS_AUTOREGRESSIVE
from analysis.published import DECIDED
from analysis.table import Number, Paper
from resispec.audit.verdict import Finding

METHOD = ["decoder", "tree", "verifier"]
ROUNDING = 1e-9
"""Tolerance of a gain of 1 with the interval [1, 1]:
each prompt emits what the standard rule does.
"""
COLUMNS = ["artefact", "cell_id", *METHOD, "quantity", "value", "lower", "upper", "verdict"]


def values(frames: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Values of the template: the rows behind each fact.

    frames: artefact -> the frame of its first table.
    """
    parts = [frame.assign(artefact=name) for name, frame in frames.items()]
    rows = pd.concat(parts or [pd.DataFrame()], ignore_index=True).reindex(columns=COLUMNS)
    rows = rows[rows.value.notna()].fillna({"verdict": ""})
    audited = rows[(rows.quantity == ACCEPTED_LENGTH.name) & (rows.verdict != "")].drop_duplicates(
        "cell_id"
    )
    lengths = of_resispec(_of(rows, ACCEPTED_LENGTH.name, "frontier"))
    audits = _by_verdict(of_resispec(audited))
    gains = rows[(rows.quantity == GAIN.name) & rows.cell_id.isin(audits["unbiased"].cell_id)]
    speeds = _of(rows, SPEEDUP_VS_AUTOREGRESSIVE.name, "table1", "frontier")
    is_standard = gains.lower.gt(1 - ROUNDING) & gains.upper.lt(1 + ROUNDING)
    for name, cells in {"equal": gains[is_standard], "missed": gains[~is_standard]}.items():
        audits[name] = audits["unbiased"][audits["unbiased"].cell_id.isin(cells.cell_id)]
    return {
        "claimed": paper("table1"),
        "claimed_on_trees": paper("table3"),
        "audits": audits,
        "other_audits": _by_verdict(audited.drop(of_resispec(audited).index)),
        "gains": of_resispec(_of(rows, GAIN.name, "table1")),
        "speedups": of_resispec(_of(rows, "speedup", "table1")),
        "speeds": {
            "resispec": of_resispec(speeds),
            "exact": _by_verdict(speeds.drop(of_resispec(speeds).index))["unbiased"],
        },
        "ceilings": lengths.merge(
            _of(rows, "ceiling", "frontier"), on="cell_id", suffixes=("", "_ceiling")
        ),
        "best": _best_unbiased(rows),
        "divergences": of_resispec(_of(rows, "paper_kl", "table4")),
        "random_divergences": _of(rows, "random_proxy_kl", "table4"),
        "deviations": of_resispec(_of(rows, "total_variation_z", "table4")),
        "picture": _picture(frames),
    }


def between(numbers: pd.Series, spec: str = ACCEPTED_LENGTH.spec) -> str:
    """The range of measured numbers, as printed: "1.43–1.64"."""
    return str(Paper(numbers.min(), numbers.max(), spec))


def methods(rows: pd.DataFrame) -> str:
    """The methods of rows, each with their count: "EAGLE + ResiSpec (6 rows)"."""
    counts = Counter(map(labels.method, rows.decoder, rows.verifier))
    return ", ".join(
        f"{method} ({count} row{'s' if count > 1 else ''})" for method, count in counts.items()
    )


def _of(rows: pd.DataFrame, quantity: str, *artefacts: str) -> pd.DataFrame:
    return rows[(rows.quantity == quantity) & rows.artefact.isin(artefacts)]


def _by_verdict(audited: pd.DataFrame) -> dict[str, pd.DataFrame]:
    verdicts = {
        "biased": Finding.BIASED,
        "unbiased": Finding.NO_BIAS_SEEN,
        "undecided": Finding.UNDECIDED,
    }
    frames = {name: audited[audited.verdict == verdict] for name, verdict in verdicts.items()}
    return {"decided": audited[audited.verdict.isin(DECIDED)]} | frames


def _best_unbiased(rows: pd.DataFrame) -> dict[str, Any]:
    """The highest gain without a bias seen but ResiSpec's,
    and all gains and speedups of the same method.
    """
    gains = _of(rows, GAIN.name, "frontier", "levels", "field")
    gains = gains[gains.verdict == Finding.NO_BIAS_SEEN]
    gains = gains.drop(of_resispec(gains).index)
    if gains.empty:
        return {"gains": gains}
    best = gains.loc[gains.value.idxmax()]
    best_rows = rows[(rows.artefact == best.artefact) & (rows.cell_id == best.cell_id)]
    numbers = {row["quantity"]: Number.of(row, ".2f") for row in best_rows.to_dict("records")}
    method_gains = gains[(gains[["artefact", *METHOD]] == best[["artefact", *METHOD]]).all(axis=1)]
    speedups = _of(rows, SPEEDUP.name, best.artefact)
    return {
        "gains": method_gains,
        "speedups": speedups[speedups.cell_id.isin(method_gains.cell_id)].value,
        "method": labels.method_on_tree(best.decoder, best.verifier, best.tree),
        "length": numbers[ACCEPTED_LENGTH.name],
        "ceiling": numbers.get("ceiling"),
    }


def _picture(frames: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Bars of accepted lengths for the first setting in which ResiSpec was measured;
    hot settings come first.

    A bar is its name, its number and a `Finding`, "ceiling" or "". Without such a setting there are
    no bars.
    """
    for names in (("frontier", "levels"), ("table1",)):
        if not (parts := [frames[name] for name in names if name in frames]):
            continue
        frame = with_filters_off(pd.concat(parts, ignore_index=True))
        measured = frame[frame.value.notna()]
        lengths = measured[measured.quantity == ACCEPTED_LENGTH.name]
        for _, row in of_resispec(lengths).head(1).iterrows():
            keys = [*frame.loc[:, "cell_id":"status"].columns[1:-1], *filters_in(frame)]
            setting = [key for key in dict.fromkeys(keys) if key not in METHOD]
            rows = lengths[(lengths[setting] == row[setting]).all(axis=1)]
            bars = list(_compared(row, rows, measured[measured.quantity == "ceiling"]))
            longest = max(number.value for _, number, _ in bars)
            return {"setting": labels.setting(row[setting]), "bars": bars, "longest": longest}
    return {"bars": []}


def _compared(
    resispec: pd.Series, rows: pd.DataFrame, ceilings: pd.DataFrame
) -> Iterator[tuple[str, Number, str]]:
    """Bars: standard rule and ResiSpec on one tree, the best others on this and on any tree,
    and ceilings.

    The others are neither of these two and have no bias seen. resispec: the row of ResiSpec. rows:
    the lengths of its setting. ceilings: the rows of ceilings in all settings.
    """
    on_tree = rows[(rows.tree == resispec.tree) & (rows.decoder == resispec.decoder)]
    standard = on_tree[on_tree.verifier == "standard"].head(1)
    others = rows[(rows.verdict == Finding.NO_BIAS_SEEN) & (rows.verifier != "standard")]
    others = others.drop(of_resispec(others).index)
    best = [
        group.nlargest(1, "value") for group in (others[others.index.isin(on_tree.index)], others)
    ]
    bars = pd.concat([standard, resispec.to_frame().T, *best]).drop_duplicates("cell_id")
    for _, row in bars.iterrows():
        method = labels.method_on_tree(row.decoder, row.verifier, row.tree)
        yield method, Number.of(row.to_dict(), ".2f"), row.verdict
    place = ["decoder", "tree"]
    trees = bars[place].drop_duplicates().merge(rows[["cell_id", *place]])
    trees = trees.merge(ceilings[["cell_id", "value", "lower", "upper"]]).drop_duplicates(place)
    for row in trees.to_dict("records"):
        name = f"Ceiling of exact verifiers, {labels.name('tree', row['tree'])}"
        yield name, Number.of(row, ".2f"), "ceiling"
