"""Speed: tokens a second, time a token by verified positions, for `tree=fastest` and others."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures, labels, long
from analysis.artefact import Artefact, footer, run, texts
from analysis.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SIZE, SKY, VERMILION, Look
from analysis.frontier_shapes import between
from analysis.load import LABELS, Plan, Results, filters_in, load
from analysis.published import Compared
from analysis.stats import ABSENT, BRACKETS, Interval, paired_gain, ratio
from analysis.table import Number, Table
from resispec.trees.search import winners

TEXTS = texts("speed")
KINDS = {
    "chain": ("chain", Look(BLUE, "D", "-.")),
    "iid": ("best, independent draws", Look(GREEN, "s")),
    "recycled": ("best, recycled laws", Look(SKY, ">", "-")),
    "without_replacement": ("best, without replacement", Look(ORANGE, "v", "--")),
    "point_mass": ("best, likeliest tokens", Look(PURPLE, "P", ":")),
}
"""Kind of an entry -> name and looks of its line. The name of an entry is its kind and its size."""
D5B3 = {
    "standard": Look(VERMILION, "o", ""),
    "traversal_optimal": Look(GREEN, "^", ""),
    "level_optimal": Look(BLUE, "<", ""),
}
FASTEST = "fastest"
SINGLE = {
    "one_token": ("one token at a time", Look(BLACK, "", "-")),
    FASTEST: ("tree=fastest", Look(VERMILION, "*", "")),
    "generate": ("transformers, generate", Look(GREY, "", "--")),
    "assisted": ("transformers, assisted", Look(SKY, "", "-.")),
}
"""Kind of an entry with one size -> name and looks; without a marker it is a horizontal line."""
MOST_PANELS = 4
DESCRIBING = ("entry", "draws", "verifier", "num_nodes", "num_levels")
SUMS = ("whole_s", "num_returned", "decode_s", "num_emitted", "num_steps")
FIELDS = (*DESCRIBING, *SUMS)
"""Fields of the rows; each list has one value per entry, and DESCRIBING is the same in all rows."""
COLUMNS = (
    *(
        "cell_id",
        *LABELS,
        "entry",
        "draws",
        "num_nodes",
        "num_levels",
        "status",
        "reason",
        "num_prompts",
    ),
    *("quantity", "value", "lower", "upper", "wins_from_ratio", "wins_up_to_ratio"),
)
NUMBERS = (
    long.number("Tokens/s", ".0f", "tokens_per_s"),
    long.number("ms a token", ".2f", "ms_per_token"),
    long.number("Accepted length", ".2f", "accepted_length"),
    long.number("Over one token", ".2f", "speedup_vs_one_token"),
)


def make(plan: Plan) -> Artefact:
    """The table of all entries, and the figure."""
    results = load(plan, FIELDS)
    frame = measure(results)
    varying, fixed = long.split_keys(results.cells, results.setting)
    cells = frame.groupby("cell_id", sort=False)
    verdicts = [line for _, rows in cells for line in goal(rows, varying)]
    columns = (
        *long.names(varying),
        long.named("entry", "Entry", entry_text),
        long.named(
            "verifier", "Verifier", lambda row: _if_any(row["num_nodes"] > 1, row, "verifier")
        ),
        long.named(
            "num_nodes", "Positions", lambda row: _if_any(row["num_nodes"], row, "num_nodes")
        ),
        long.named(
            "num_levels", "Levels", lambda row: _if_any(row["num_levels"], row, "num_levels")
        ),
        *NUMBERS,
        long.words(
            "wins_from_ratio",
            "Wins at cost ratios",
            lambda row: between(row["wins_from_ratio"], row["wins_up_to_ratio"]),
        ),
    )
    lines = long.tabulate(frame, ["cell_id", *results.keys[:3], "entry"], columns)
    about = (*verdicts, *TEXTS["about"])
    notes = footer(results, plan, about, [BRACKETS], TEXTS["picture"])
    table = Table("speed", *lines, TEXTS["caption"] + fixed, frame, notes)
    lengths = Compared("accepted_length", "accepted lengths", ("entry",))
    return Artefact((table,), {"speed": partial(draw, frame)}, compared=lengths)


def measure(results: Results) -> pd.DataFrame:
    """A long frame with a row for each entry of each cell and each quantity.

    Entries are in the order in which rows hold them. A cell that is not done has one row without
    numbers. A value is NaN if it has no meaning: transformers, for example, does not report its
    number of steps.
    """
    records: list[dict[str, Any]] = []
    for about, prompts in results.each():
        if prompts is None:
            records.append(about | {"entry": "", "draws": "", "quantity": "tokens_per_s"})
            continue
        for description, numbers in _entries(prompts):
            records += long.records(about | description, numbers)
    names = [*COLUMNS, *(name for name in results.more if name not in COLUMNS)]
    return pd.DataFrame(records, columns=names)


def _entries(prompts: pd.DataFrame) -> Iterator[tuple[dict[str, Any], dict[str, Interval]]]:
    """The description and the quantities of every entry of a cell."""
    first = prompts.iloc[0]
    names, levels = list(first.entry), list(first.num_levels)
    # Each array is (prompts, entries).
    sums = {name: np.array(prompts[name].tolist(), np.float64) for name in SUMS}
    ours = [place for place, count in enumerate(levels) if count and names[place] != FASTEST]
    lengths = sums["num_emitted"].sum(0)[ours] / sums["num_steps"].sum(0)[ours]
    wins = winners(
        [(levels[place], float(length)) for place, length in zip(ours, lengths, strict=True)]
    )
    ranges = {
        ours[win.index]: {"wins_from_ratio": win.from_ratio, "wins_up_to_ratio": win.to_ratio}
        for win in wins
    }
    rates = [
        (sums["num_returned"][:, place], sums["whole_s"][:, place]) for place in range(len(names))
    ]
    best = int((sums["num_returned"].sum(0) / sums["whole_s"].sum(0)).argmax())
    baselines = {"speedup_vs_one_token": names.index("one_token"), "share_of_best": best}
    for place in range(len(names)):
        entry_sums = {name: values[:, place] for name, values in sums.items()}
        numbers = {
            "tokens_per_s": ratio(*rates[place]),
            "ms_per_token": ratio(1e3 * entry_sums["whole_s"], entry_sums["num_returned"]),
            "accepted_length": ratio(entry_sums["num_emitted"], entry_sums["num_steps"]),
        }
        for quantity, other in baselines.items():
            numbers[quantity] = (
                ABSENT if other == place else paired_gain(rates[place], rates[other])
            )
        numbers["decoded_per_s"] = ratio(entry_sums["num_emitted"], entry_sums["decode_s"])
        numbers["step_ms"] = ratio(1e3 * entry_sums["decode_s"], entry_sums["num_steps"])
        yield {key: first[key][place] for key in DESCRIBING} | ranges.get(place, {}), numbers


def goal(own: pd.DataFrame, varying: Sequence[str] = ()) -> Sequence[str]:
    """The note on `tree=fastest` beside the fastest entry and one token at a time.

    own: one cell's rows. varying: the keys that tell cells apart.
    """
    rates = own[(own.quantity == "tokens_per_s") & own.value.notna()].set_index("entry")
    if rates.empty:
        return ()
    fastest, best = rates.loc[FASTEST], str(rates.value.idxmax())
    numbers = own[own.entry == FASTEST].set_index("quantity")[["value", "lower", "upper"]]
    size = f"{fastest.num_nodes:.0f} positions" if fastest.num_nodes > 1 else "no speculation"
    share, speedup = (
        Number(*numbers.loc[name]) for name in ("share_of_best", "speedup_vs_one_token")
    )
    standing = "the fastest entry"
    if best != FASTEST:
        is_same = all(fastest[name] == rates.loc[best][name] for name in DESCRIBING[1:])
        entry_name = f"{best.replace('_', ' ')}{', the same configuration' if is_same else ''}"
        standing = f"{share} of the fastest entry ({entry_name})"
    text = f"{size}, {standing}, and {speedup} of one token at a time"
    filters = "".join(f", {labels.header(key)}={fastest[key]}" for key in filters_in(own))
    told = ("method", "temperature", *filters_in(own))
    others = {key: fastest[key] for key in varying if key not in told}
    where = f", {labels.setting(others)}," if others else ""
    return (f"At T={fastest.temperature:g}{filters}{where} tree=fastest is {text}.",)


def _if_any(is_any: object, row: Mapping[str, Any], key: str) -> str:
    """The printed value of an entry; "–" if it has no meaning."""
    return labels.text(key, row[key]) if is_any else labels.ABSENT


def entry_text(row: Mapping[str, Any]) -> str:
    """The name of an entry in a table, without its verifier and size."""
    kind = row["entry"].partition(" ")[0]
    return (KINDS | SINGLE).get(kind, (kind or labels.ABSENT,))[0]


def draw(frame: pd.DataFrame, width: float | None = None) -> Figure:
    """The figure. frame: that of `measure`. Settings beyond MOST_PANELS are in the table only."""
    rates = frame[(frame.quantity == "tokens_per_s") & frame.value.notna()]
    settings = [rows for _, rows in rates.groupby("cell_id", sort=False)]
    num_settings, settings = len(settings), settings[:MOST_PANELS]
    more = [name for name in frame if name not in COLUMNS]
    varying = [key for key in ("dataset", *more) if rates[key].nunique() > 1]
    count = max(1, len(settings))
    columns, size = count, (2.7 + 4.2 * count, 4.2)
    if width:
        columns = count if width > 2.6 * count else 1
        size = (width, 2.9 * (count // columns) + (1.7 if width > 4 else 2.6))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(count // columns, columns, sharey=True, squeeze=False)
    panels = grid.ravel()
    for axes, rows in zip(panels, settings, strict=False):
        _panel(axes, rows, varying)
    panels[0].set_ylim(bottom=0)  # of all panels, when all are drawn: it fixes their top, too
    for axes in grid[:, 0]:
        axes.set_ylabel("tokens a second, the prompt included", fontsize=SIZE + 0.5)
    handles, names = panels[0].get_legend_handles_labels()
    place: dict[str, Any] = {"loc": "outside right center"}
    if width:
        place = {"loc": "outside lower center", "ncols": figures.legend_columns(names, width)}
    figure.legend(handles, names, fontsize=SIZE, frameon=False, **place)
    title = message(frame)
    if num_settings > count:
        title += f"\ndrawn: the first {count} of {num_settings} settings; the table has all"
    figure.suptitle(title, fontsize=SIZE + 3)
    return figure


def message(frame: pd.DataFrame) -> str:
    """A sentence on the entry that gains most over one token at a time. frame: see `draw`.

    An entry gains if its interval lies above 1, or its value if there are too few prompts for an
    interval.
    """
    gains = frame[
        (frame.quantity == "speedup_vs_one_token")
        & (frame.lower.fillna(frame.value) > 1)
        & (frame.num_nodes > 1)
    ]
    if gains.empty:
        return "Nothing drafted beats one token at a time"
    best = gains.iloc[gains.value.argmax()]
    varying = [key for key in LABELS[:2] if frame[key].nunique() > 1]
    where = labels.setting({key: best[key] for key in (*varying, "temperature")})
    return (
        f"{100 * best.value - 100:.0f} % faster than one token at a time:\n"
        f"{entry_text(best)}, {best.num_nodes:g} positions, {where}"
    )


def _panel(axes: Axes, frame: pd.DataFrame, varying: Sequence[str]) -> None:
    """Draw a cell. varying: keys beyond its pair, temperature and filters that its title names."""
    kinds = frame.entry.str.partition(" ")[0]
    lines = [
        (name, look, frame[kinds == kind].sort_values("num_nodes"))
        for kind, (name, look) in KINDS.items()
    ]
    lines += [
        (f"d5b3, {labels.name('verifier', verifier)}", D5B3[verifier], rows)
        for verifier, rows in frame[kinds == "d5b3"].groupby("verifier", sort=False)
    ]
    for name, look, rows in (*lines, (*SINGLE[FASTEST], frame[kinds == FASTEST])):
        if len(rows):
            figures.line(axes, rows.num_nodes, rows, look, name)
    for kind, (name, look) in SINGLE.items():
        for value in frame.value[(kinds == kind) & (not look.marker)]:
            axes.axhline(value, color=look.colour, linestyle=look.line, linewidth=1.1, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64, 128], [str(2**power) for power in range(8)])
    axes.set_xlabel("verified positions", fontsize=SIZE + 0.5)
    first = frame.iloc[0]
    keys = dict.fromkeys(("pair", "temperature", *filters_in(frame), *varying))
    setting = labels.setting({key: first[key] for key in keys})
    axes.set_title(setting, fontsize=SIZE + 0.5)
    figures.finish(axes)


if __name__ == "__main__":
    raise SystemExit(run("speed", make))
