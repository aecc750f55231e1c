"""Speed: tokens a second and time a token against verified positions, of the fastest entries and others.

Usage: python -m analysis.speed --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures, labels
from analysis.artefact import Artefact, command, footer, key_cells, key_columns, split_keys
from analysis.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, Look
from analysis.frontier_shapes import between
from analysis.load import LABELS, SETTING, Plan, Results, load
from analysis.published import Compared
from analysis.stats import ABSENT, BRACKETS, Interval, paired_gain, ratio
from analysis.table import Cell, Column, Gap, Key, Notes, Number, Picture, Table, Text
from resispec.errors import InvalidInput
from resispec.files import read_json
from resispec.trees.search import winners

HEADER = {"entry": "Entry", "verifier": "Verifier", "num_nodes": "Positions", "num_levels": "Levels"}
NUMBERS = {
    "tokens_per_s": ("Tokens/s", ".0f"),
    "ms_per_token": ("ms a token", ".2f"),
    "accepted_length": ("Accepted length", ".2f"),
    "speedup_vs_one_token": ("Over one token", ".2f"),
}
DEFINITIONS = (
    "Every prompt is decoded by all entries in turn, in an order that is drawn anew for each prompt, so "
    "that noise falls on all alike. Tokens/s: tokens returned over seconds of the whole call, the prompt's "
    "forward included. Accepted length: tokens emitted per forward of the target. Over one token: tokens/s "
    "over those of one token at a time. Best: the fastest of its kind and number of positions by expected "
    "tokens a step and the cost model of the device; tree=fastest: the fastest of all, which may be not to "
    "speculate.",
    "Wins at cost ratios: if a forward of the target cost the same for any number of positions here, as "
    "where memory bounds it, between which ratios of a draft forward to a target forward no other entry "
    "would be faster, by the accepted lengths measured here.",
)
ENGINES = "Transformers drafts 4 tokens a step at most, and stops drafting by its own confidence threshold."


LINES = {
    "chain": Look(BLUE, "D", "-."),
    "iid": Look(GREEN, "s"),
    "without_replacement": Look(ORANGE, "v", "--"),
    "point_mass": Look(PURPLE, "P", ":"),
}
D5B3 = {
    "standard": Look(VERMILION, "o", ""),
    "traversal_optimal": Look(GREEN, "^", ""),
    "level_optimal": Look(BLUE, "<", ""),
}
LEVELS = {"one_token": (BLACK, "-"), "generate": (GREY, "--"), "assisted": (SKY, "-.")}
MOST_PANELS = 4


DESCRIBING = ("entry", "draws", "verifier", "num_nodes", "num_levels")
SUMS = ("whole_s", "num_returned", "decode_s", "num_emitted", "num_steps")
FIELDS = (*DESCRIBING, *SUMS)
"""Of the rows; every list has one value an entry, and what describes entries is the same in all rows."""
FASTEST = "fastest"
QUANTITIES = (
    *("tokens_per_s", "ms_per_token", "accepted_length", "speedup_vs_one_token", "share_of_best"),
    *("decoded_per_s", "step_ms"),
)
COLUMNS = (
    *("cell_id", *LABELS, "entry", "draws", "num_nodes", "num_levels", "status", "reason", "num_prompts"),
    *("quantity", "value", "lower", "upper", "wins_from_ratio", "wins_up_to_ratio"),
)
KINDS = {
    "chain": "chain",
    "iid": "best, independent draws",
    "without_replacement": "best, without replacement",
    "point_mass": "best, likeliest tokens",
}
"""Kind of an entry -> what it is called; the rest of its name is its size."""
SINGLE = {
    "one_token": "one token at a time",
    "fastest": "tree=fastest",
    "generate": "transformers, generate",
    "assisted": "transformers, assisted",
}


GOAL = 0.10
PREDICTED = {"decoded_per_s": ".0f", "step_ms": ".2f", "accepted_length": ".2f"}
"""Compared quantities, and how they are printed."""
COST_KEYS = ("pair", "dataset", "temperature")
PREDICTION = (
    *("cell_id", "pair", "dataset", "temperature", "entry", "draws", "verifier", "num_nodes", "num_levels"),
    *("quantity", "expected", "measured", "lower", "upper", "expected_over_measured"),
)
COST_COLUMNS = (
    Column("verifier", "Verifier", "key"),
    Column("num_nodes", "Positions", "number"),
    Column("decoded_per_s", "Tokens/s", "number"),
    Column("decoded_per_s expected", "expected", "number"),
    Column("decoded_per_s ratio", "ratio", "number"),
    Column("step_ms", "ms a step", "number"),
    Column("step_ms expected", "expected", "number"),
    Column("accepted_length", "Tokens a step", "number"),
    Column("accepted_length expected", "expected", "number"),
)
COST_NOTES = (
    "Tokens/s here: emitted tokens over decoding seconds, without the prompt's forward. Expected ms a step: "
    "by the cost model of the device (`python -m experiments.bench.costs`), timed by itself. Expected tokens "
    "a step: from laws of drafted trees in text that the target wrote, on documents that are not "
    "measured here. Ratio: expected over measured. Over one token at a time a machine that was busier during "
    "one of the two measurements matters less.",
)


def make(plan: Plan) -> Artefact:
    """The table of all entries, that of the predictions, and the figure."""
    results = load(plan, FIELDS)
    frame = measure(results)
    compared = predictions(frame, plan)
    verdicts = [line for _, own in frame.groupby("cell_id", sort=False) for line in goal(own)]
    about = (*verdicts, *predicted(compared), *DEFINITIONS, ENGINES)
    varying, fixed = split_keys(results.cells, (*SETTING, *results.more))
    columns = (
        *key_columns(varying),
        *(Column(key, header, "key") for key, header in HEADER.items()),
        *(Column(key, header, "number") for key, (header, _) in NUMBERS.items()),
        Column("wins_from_ratio", "Wins at cost ratios", "text"),
    )
    groups = frame.groupby(["cell_id", *results.keys[:3], "entry"], sort=False)
    table = Table(
        "speed",
        columns,
        tuple(_line(rows, varying) for _, rows in groups),
        f"Speed of exact decoding, {plan.profile} profile.{fixed}",
        frame,
        footer(
            results,
            plan,
            about,
            [BRACKETS],
            Picture("Tokens a second against verified positions", "speed.png"),
        ),
    )
    tables = (table, costs(compared, plan))
    lengths = Compared("accepted_length", "accepted lengths", ("entry",))
    return Artefact(tables, {"speed": draw(frame)}, compared=lengths)


def goal(own: pd.DataFrame) -> Sequence[str]:
    """How near `tree=fastest` came to the fastest entry and to one token at a time, of one cell's rows."""
    rates = own[(own.quantity == "tokens_per_s") & own.value.notna()].set_index("entry")
    if rates.empty:
        return ()
    fastest, best = rates.loc[FASTEST], str(rates.value.idxmax())
    by = own[own.entry == FASTEST].set_index("quantity")[["value", "lower", "upper"]]
    found = f"{fastest.num_nodes:.0f} positions" if fastest.num_nodes > 1 else "no speculation"
    share, speedup = (Number(*by.loc[name], ".2f") for name in ("share_of_best", "speedup_vs_one_token"))
    near = "the fastest entry"
    if best != FASTEST:
        is_same = all(fastest[name] == rates.loc[best][name] for name in DESCRIBING[1:])
        named = f"{best.replace('_', ' ')}{', the same configuration' if is_same else ''}"
        near = f"{share} of the fastest entry ({named})"
    said = f"{found}, {near}, and {speedup} of one token at a time"
    return (f"At T={fastest.temperature:g} tree=fastest is {said}.",)


def _line(rows: pd.DataFrame, varying: Sequence[str]) -> tuple[Cell, ...]:
    """The line of one entry; a cell that is not done says so in place of its first number."""
    first, by = rows.iloc[0], {row["quantity"]: row for row in rows.to_dict("records")}
    keys = key_cells(first, varying)
    if first.status != "done":
        gap, absent = Gap(first.status, first.reason), Key(None, labels.ABSENT)
        return (*keys, *[absent] * len(HEADER), gap, *[Text()] * len(NUMBERS))
    verifier = labels.name("verifier", first.verifier) if first.num_nodes > 1 else labels.ABSENT
    keys += [Key(first.entry, entry_text(first)), Key(first.verifier, verifier)]
    keys += [
        Key(first[name], str(int(first[name])) if first[name] else labels.ABSENT)
        for name in ("num_nodes", "num_levels")
    ]
    numbers = [Number.of(by[quantity], spec) for quantity, (_, spec) in NUMBERS.items()]
    low, high = first.wins_from_ratio, first.wins_up_to_ratio
    return (*keys, *numbers, Text("" if pd.isna(low) else between(low, high)))


def draw(frame: pd.DataFrame) -> Figure:
    """frame: of `measure`. Settings beyond MOST_PANELS are in the table only."""
    rates = frame[(frame.quantity == "tokens_per_s") & frame.value.notna()]
    settings = [own for _, own in rates.groupby("cell_id", sort=False)][:MOST_PANELS]
    figure = Figure(figsize=(2.7 + 4.2 * max(1, len(settings)), 4.2), layout="constrained")
    panels = figure.subplots(1, max(1, len(settings)), squeeze=False)[0]
    for axes, own in zip(panels, settings, strict=False):
        _panel(axes, own)
    panels[0].set_ylabel("tokens a second, the prompt included", fontsize=figures.SIZE + 0.5)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=figures.SIZE, frameon=False, loc="outside right upper")
    return figure


def _panel(axes: Axes, own: pd.DataFrame) -> None:
    kinds = own.entry.map(kind_of)
    for kind, look in LINES.items():
        rows = own[kinds == kind].sort_values("num_nodes")
        figures.line(axes, rows.num_nodes, rows, look, KINDS[kind])
    for verifier, rows in own[kinds == "d5b3"].groupby("verifier", sort=False):
        named = f"d5b3, {labels.name('verifier', verifier)}"
        figures.line(axes, rows.num_nodes, rows, D5B3[verifier], named)
    fastest = own[kinds == "fastest"]
    figures.line(axes, fastest.num_nodes, fastest, Look(VERMILION, "*", ""), SINGLE["fastest"])
    for entry, (colour, line) in LEVELS.items():
        for value in own.value[kinds == entry]:
            axes.axhline(value, color=colour, linestyle=line, linewidth=1.1, label=SINGLE[entry])
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64, 128], [str(2**power) for power in range(8)])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("verified positions", fontsize=figures.SIZE + 0.5)
    first = own.iloc[0]
    named = f"{labels.text('pair', first.pair)}, T = {first.temperature:g}"
    axes.set_title(named, fontsize=figures.SIZE + 0.5)
    figures.finish(axes)


def kind_of(entry: str) -> str:
    """The part of an entry's name before its size."""
    return entry.partition(" ")[0]


def entry_text(row: Mapping[str, Any]) -> str:
    """Name of an entry in a table, without its verifier and size."""
    kind = kind_of(row["entry"])
    return SINGLE.get(kind) or KINDS.get(kind) or kind


def measure(results: Results) -> pd.DataFrame:
    """One row for every entry of every cell and each of QUANTITIES.

    Entries are in the order in which rows hold them. A cell that is not done has one row without numbers.
    A value is NaN where it means nothing: transformers does not say how many steps it took.
    """
    rows = [row for cell in results.cells.to_dict("records") for row in _of_cell(cell, results)]
    names = [*COLUMNS, *(name for name in results.more if name not in COLUMNS)]
    return pd.DataFrame(rows, columns=names)


def _of_cell(cell: Mapping[str, Any], results: Results) -> Iterator[dict[str, Any]]:
    shared, prompts = results.about(cell), results.rows.get(cell["cell_id"])
    if prompts is None:
        yield shared | {"entry": "", "draws": "", "quantity": QUANTITIES[0], "value": np.nan}
        return
    first = prompts.iloc[0]
    names, levels = list(first.entry), list(first.num_levels)
    sums = {name: np.array(prompts[name].tolist(), np.float64) for name in SUMS}  # (prompts, entries)
    ours = [place for place, count in enumerate(levels) if count and names[place] != FASTEST]
    tokens = (sums["num_emitted"].sum(0)[ours] / sums["num_steps"].sum(0)[ours]).tolist()
    ranges = {
        names[ours[win.index]]: {"wins_from_ratio": win.from_ratio, "wins_up_to_ratio": win.to_ratio}
        for win in winners([(levels[place], length) for place, length in zip(ours, tokens, strict=True)])
    }
    rates = sums["num_returned"].sum(0) / sums["whole_s"].sum(0)
    against = {"speedup_vs_one_token": names.index("one_token"), "share_of_best": int(rates.argmax())}
    for place, name in enumerate(names):
        described = {key: first[key][place] for key in DESCRIBING} | ranges.get(name, {})
        for quantity, interval in _quantities(sums, place, against).items():
            yield shared | described | {"quantity": quantity} | vars(interval)


def _quantities(
    sums: Mapping[str, np.ndarray], place: int, against: Mapping[str, int]
) -> dict[str, Interval]:
    """Every quantity of one entry. against: of quantities that compare, the entry that they compare with."""
    own = {name: values[:, place] for name, values in sums.items()}
    rate = (own["num_returned"], own["whole_s"])
    numbers = {
        "tokens_per_s": ratio(*rate),
        "ms_per_token": ratio(1e3 * own["whole_s"], own["num_returned"]),
        "accepted_length": ratio(own["num_emitted"], own["num_steps"]),
    }
    for quantity, other in against.items():
        baseline = (sums["num_returned"][:, other], sums["whole_s"][:, other])
        numbers[quantity] = ABSENT if other == place else paired_gain(rate, baseline)
    numbers["decoded_per_s"] = ratio(own["num_emitted"], own["decode_s"])
    numbers["step_ms"] = ratio(1e3 * own["decode_s"], own["num_steps"])
    return numbers


def read_expected(path: Path) -> list[dict[str, Any]]:
    """Facts in a file of `tree=fastest` of every configuration that was compared last.

    Raises InvalidInput when it cannot be read.
    """
    about = read_json(path).get("about", {})
    if not isinstance(about, dict) or not isinstance(about.get("expected"), list):
        raise InvalidInput(f"{path} does not say what was expected; delete it to search again")
    return list(about["expected"])


def predictions(frame: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """One row for every entry that was expected to do something, and each of PREDICTED.

    frame: of `measure`. Files that are not there any more expect nothing.
    """
    rows = []
    for one in plan.requests:
        if one.tree_file is None or not one.tree_file.is_file():
            continue
        expected = {}
        for facts in reversed(read_expected(one.tree_file)):  # of several alike the first is the best
            place = (facts["draws"], facts["verifier"], facts["num_nodes"], len(facts["child_counts"]) + 1)
            expected[place] = (facts["expected_tokens"], facts["step_s"])
        own = frame[(frame.cell_id == one.cell_id) & frame.value.notna()]
        for _, entry in own.groupby("entry", sort=False):
            place = tuple(entry.iloc[0][list(DESCRIBING[1:])])
            if place not in expected:
                continue
            tokens, step_s = expected[place]
            values = {"decoded_per_s": tokens / step_s, "step_ms": 1e3 * step_s, "accepted_length": tokens}
            for quantity, value in values.items():
                row = entry[entry.quantity == quantity].iloc[0]
                numbers = {
                    "measured": row.value,
                    "expected": value,
                    "expected_over_measured": value / row.value,
                }
                rows.append({**row, **numbers})
    return pd.DataFrame(rows, columns=list(PREDICTION))


def costs(compared: pd.DataFrame, plan: Plan) -> Table:
    """The table of all comparisons; its last note counts how many are within GOAL."""
    lines = []
    for _, rows in compared.groupby(["cell_id", *COST_KEYS, "entry"], sort=False):
        first, by = rows.iloc[0], {row["quantity"]: row for row in rows.to_dict("records")}
        numbers = []
        for quantity, spec in PREDICTED.items():
            row = by[quantity]
            numbers += [Number(row["measured"], spec=spec), Number(row["expected"], spec=spec)]
            numbers += [Number(row["expected_over_measured"])] * (quantity == "decoded_per_s")
        lines.append(
            (
                *key_cells(first, COST_KEYS),
                Key(first.entry, entry_text(first)),
                Key(first.verifier, labels.name("verifier", first.verifier)),
                Text(str(int(first.num_nodes))),
                *numbers,
            )
        )
    columns = (*key_columns(COST_KEYS), Column("entry", "Entry", "key"), *COST_COLUMNS)
    caption = f"Expected against measured speed, {plan.profile} profile."
    notes = Notes((*COST_NOTES, *predicted(compared)))
    return Table("speed_costs", columns, tuple(lines), caption, compared, notes)


def predicted(compared: pd.DataFrame) -> Sequence[str]:
    """How many predictions are within GOAL, in one note; none without predictions."""
    ratios = {
        quantity: rows.set_index(["cell_id", "num_nodes"]).expected_over_measured.astype(float)
        for quantity, rows in compared.groupby("quantity", sort=False)
    }
    if not ratios:
        return ()
    rates = ratios["decoded_per_s"]
    one_token = rates[rates.index.get_level_values("num_nodes") == 1].groupby("cell_id").first()
    others = rates[rates.index.get_level_values("num_nodes") > 1]
    relative_to = others.index.get_level_values("cell_id").map(one_token).to_numpy(float)
    named = {
        "tokens/s": rates,
        "tokens/s over those of one token at a time": (others / relative_to).dropna(),
        "ms a step": ratios["step_ms"],
        "tokens a step": ratios["accepted_length"],
    }
    errors = {name: (values - 1).abs() for name, values in named.items() if len(values)}
    said = [
        f"{name}: {int((off <= GOAL).sum())} of {len(off)} within {GOAL:.0%}, at most {off.max():.0%} off"
        for name, off in errors.items()
    ]
    return (f"Expected against measured. {'; '.join(said)}.",)


main = command("speed", make)


if __name__ == "__main__":
    sys.exit(main())
