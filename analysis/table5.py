"""Table 5: expected accepted length against the number of candidates, in two arrangements."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels, long
from analysis.artefact import Artefact, footer, paper, run, texts
from analysis.load import FILTERS_OFF, SETTING, Plan, Results, filters_in, listed, load
from analysis.published import Compared
from analysis.stats import (
    ABSENT,
    BRACKETS,
    LEVEL,
    MIN_PROMPTS,
    Interval,
    ceiling,
    divide,
    ratio,
    resample,
)
from analysis.table import Table, number

TEXTS = texts("table5")
ARRANGEMENTS = {"complete": "complete trees", "chains": "parallel chains"}
QUANTITIES = {
    "expected_accepted_length": ("EAL", ".2f"),
    "marginal_gain": ("Marginal gain", ".2f"),
    "efficiency": ("Efficiency", ".3f"),
}
LENGTH = next(iter(QUANTITIES))
PAPER_TEMPERATURE, PAPER_LEVELS = 1.0, 4
"""The temperature and the depth of trees of which the paper has figures."""
FIELDS = (
    *("num_prefixes", "arrangement", "num_candidates", "num_nodes"),
    *("emitted", "tree_log_ratios", "rollout_log_ratios"),
)
"""Lists have an entry per topology; a cell's rows share arrangement, candidates and nodes."""
VIEWS = (
    (
        "EAL over that of N = 1, which leaves out how far the models agree",
        lambda lengths: divide(lengths[..., 1:], lengths[..., :1]),
    ),
    (
        "Marginal gains over their sum, which leave out how much is gained",
        lambda lengths: divide(np.diff(lengths, axis=-1), lengths[..., -1:] - lengths[..., :1]),
    ),
    ("EAL itself, which other models shift", lambda lengths: lengths),
)
"""Views of a curve of lengths (..., K) for the comparison with the paper's: text, function."""


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells; a cell that is not done has a row that says so."""
    results = load(plan, FIELDS)
    figures = paper("table5").set_index("num_candidates")
    frame = measure(results, figures)
    varying, fixed = long.split_keys(results.cells, results.setting)
    columns = long.names(varying)
    columns += [
        long.named("arrangement", "Arrangement", lambda row: ARRANGEMENTS[row["arrangement"]])
    ]
    columns += long.names((), verifier="Method", num_candidates="N", num_nodes="Nodes")
    for quantity, (header, spec) in QUANTITIES.items():
        columns.append(long.number(header, spec, quantity))
        columns.append(long.figure(f"{header} (paper)", spec, quantity))
    keys = ["cell_id", *results.setting, "verifier", "arrangement", "num_candidates"]
    lines = long.tabulate(
        frame.assign(paper_low=frame.paper, paper_high=frame.paper), keys, columns
    )
    settings = set(zip(*(results.cells[key] for key in SETTING), strict=True))
    is_same = settings == {("llama2_7b__jf68m", PAPER_TEMPERATURE, "cnn_dm")}
    is_same &= not filters_in(results.keys)
    setting = TEXTS["same_setting" if is_same else "other_setting"]
    forms = _forms(results, figures[LENGTH])
    depths = {num_levels(rows) for rows in results.rows.values()}
    definitions = [
        text.format(levels=listed(sorted(depths)) or "?") for text in TEXTS["definitions"]
    ]
    about = (*definitions, *beside_ceilings(frame, results.more), setting, *forms)
    table = Table(
        "table5", *lines, TEXTS["caption"] + fixed, frame, footer(results, plan, about, [BRACKETS])
    )
    compared = Compared(LENGTH, "expected accepted lengths", ("arrangement", "num_candidates"))
    return Artefact((table,), compared=compared)


def measure(results: Results, figures: pd.DataFrame) -> pd.DataFrame:
    """A long frame with a row for each line, arrangement, N and quantity.

    A cell that is not done has one row for each arrangement.
    """
    records: list[dict[str, Any]] = []
    for lines in long.with_ceilings(results):
        for arrangement in ARRANGEMENTS:
            for about, rows in lines:
                verifier, about = about["verifier"], about | {"arrangement": arrangement}
                is_papers = verifier == "standard" and _is_papers(about, rows)
                paper_numbers = figures[[*QUANTITIES]].stack().to_dict() if is_papers else {}
                points = [({}, {None: ABSENT})]
                if rows is not None:
                    points = curve(rows, arrangement, of_ceiling=verifier == long.CEILING)
                for sizes, numbers in points:
                    for record in long.records(about | sizes, numbers):
                        place = record.get("num_candidates"), record["quantity"]
                        records.append(record | {"paper": paper_numbers.get(place, np.nan)})
    about = [
        "cell_id",
        *results.setting,
        "verifier",
        "status",
        "reason",
        "num_prompts",
        "arrangement",
    ]
    numbers = ["num_candidates", "num_nodes", "quantity", "value", "lower", "upper", "paper"]
    return pd.DataFrame(records, columns=[*about, *numbers])


def curve(
    rows: pd.DataFrame, arrangement: str, of_ceiling: bool
) -> Iterator[tuple[dict[str, int], dict[str, Interval]]]:
    """Sizes and quantities of one cell for each N, bootstrapped over prompts; gains are paired.

    The first N has no gain and no efficiency (NaN). of_ceiling: whether to give the ceiling's
    quantities; the ceiling is 1 + the sum of A_l over levels, and its gains, differences of bounds,
    have no interval.
    """
    emitted, places = _emitted(rows, arrangement), _places(rows, arrangement)
    if of_ceiling:
        bounds = [
            ceiling(rows.rollout_log_ratios, [trees[place] for trees in rows.tree_log_ratios])
            for place in places
        ]
    for index, place in enumerate(places):
        sizes = {name: rows[name].iloc[0][place] for name in ("num_candidates", "num_nodes")}
        length = bounds[index] if of_ceiling else ratio(emitted[:, index], rows.num_prefixes)
        gains = [ABSENT, ABSENT]
        if index:
            num_added = sizes["num_candidates"] - rows.num_candidates.iloc[0][places[index - 1]]
            growth = emitted[:, index] - emitted[:, index - 1]
            gains = [
                Interval(float(divide(length.value - bounds[index - 1].value, candidates)))
                if of_ceiling
                else ratio(growth, rows.num_prefixes * candidates)
                for candidates in (1, num_added)
            ]
        yield sizes, dict(zip(QUANTITIES, (length, *gains), strict=True))


def num_levels(rows: pd.DataFrame) -> int:
    """The levels of a cell's trees, counting the root: 1 + the nodes of each parallel chain."""
    place = _places(rows, "chains")[0]
    return 1 + (rows.num_nodes.iloc[0][place] - 1) // rows.num_candidates.iloc[0][place]


def _is_papers(about: Mapping[str, Any], rows: pd.DataFrame | None) -> bool:
    """Whether the paper has figures of a cell's law and depth; it has none of filtered laws."""
    is_as_deep = rows is None or num_levels(rows) == PAPER_LEVELS
    is_filtered = any(float(about[key]) != FILTERS_OFF[key] for key in filters_in(about))
    return bool(about["temperature"] == PAPER_TEMPERATURE and is_as_deep and not is_filtered)


def _places(rows: pd.DataFrame, arrangement: str) -> list[int]:
    """Places of an arrangement's topologies in the lists of a cell's rows."""
    return [place for place, name in enumerate(rows.arrangement.iloc[0]) if name == arrangement]


def _emitted(rows: pd.DataFrame, arrangement: str) -> np.ndarray:
    """Emitted tokens on the K topologies of an arrangement, (prompts, K) float64."""
    return np.array(rows.emitted.tolist(), np.float64)[:, _places(rows, arrangement)]


def beside_ceilings(frame: pd.DataFrame, more: Sequence[str] = ()) -> tuple[str, ...]:
    """The note that counts each rule's rows with intervals above or below their ceiling's.

    frame: that of the table. more: labels beside SETTING. Without a ceiling there is no note.
    """
    lengths = frame[(frame.quantity == LENGTH) & frame.lower.notna()]
    is_ceiling = lengths.verifier == long.CEILING
    keys = [*SETTING, *more, "arrangement", "num_candidates"]
    pairs = lengths[~is_ceiling].merge(lengths[is_ceiling], on=keys, suffixes=("", "_ceiling"))
    counts = [
        f"{labels.name('verifier', verifier)} {(rows.lower > rows.upper_ceiling).sum()} of "
        f"{len(rows)} rows above and {(rows.upper < rows.lower_ceiling).sum()} below"
        for verifier, rows in pairs.groupby("verifier", sort=False)
    ]
    return (f"Beside their ceilings, intervals apart: {', '.join(counts)}.",) if counts else ()


def _forms(results: Results, lengths: pd.Series) -> Iterator[str]:
    """Notes on the arrangement closer to the paper's form, for standard cells with its N."""
    found = [
        (about, rows)
        for about, rows in results.each()
        if rows is not None and about["verifier"] == "standard" and _is_papers(about, rows)
    ]
    for about, rows in found:
        if list(dict.fromkeys(rows.num_candidates.iloc[0])) != lengths.index.tolist():
            continue
        errors = {name: differences(rows, name, lengths.to_numpy()) for name in ARRANGEMENTS}
        sentences = []
        for view, (form, _) in enumerate(VIEWS):
            closer, other = sorted(ARRANGEMENTS, key=lambda name: errors[name][view][0])
            is_closer = errors[closer][view][1] < errors[other][view][1]
            share = float(np.mean(is_closer)) if len(rows) >= MIN_PROMPTS else np.nan
            values = " and ".join(
                f"{number(errors[name][view][0], '.3f')} for {ARRANGEMENTS[name]}"
                for name in (closer, other)
            )
            order = f"the same order in {number(share, '.0%')} of the resamples"
            sentences.append(
                f"{form}: {values} ({order}{'' if share >= LEVEL else ', so undecided'})."
            )
        where = labels.setting({key: about[key] for key in (*SETTING, *results.more)})
        asked = TEXTS["asked"].format(where=f" ({where})" if len(found) > 1 else "")
        yield " ".join((asked, *sentences, TEXTS["consistent"]))


def differences(
    rows: pd.DataFrame, arrangement: str, figures: np.ndarray
) -> list[tuple[float, np.ndarray]]:
    """Root mean square differences of a cell's curve from the paper's, in all VIEWS. figures: (K,).

    Each pair holds the measured difference, and those of the resamples of the prompts (R,).
    """
    emitted, prefixes = _emitted(rows, arrangement), rows.num_prefixes.to_numpy(np.float64)
    counts = resample(len(rows))
    curves = (
        emitted.sum(0) / prefixes.sum(),
        divide(counts @ emitted, (counts @ prefixes)[:, None]),
    )
    pairs = []
    for _, view in VIEWS:
        error, resamples = (
            np.sqrt(np.mean((view(lengths) - view(figures)) ** 2, axis=-1)) for lengths in curves
        )
        pairs.append((float(error), resamples))
    return pairs


if __name__ == "__main__":
    raise SystemExit(run("table5", make))
