"""Figure 3: the parts of a step's time, and of the time of shaping, decoder by decoder."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis import figures, labels, long, metrics
from analysis.artefact import Artefact, footer, paper, run, texts
from analysis.figures import SIZE
from analysis.load import Plan, Results, load
from analysis.metric_table import across_devices
from analysis.stats import ABSENT, BRACKETS, Interval, across_runs, divide, paired_gain, ratio
from analysis.table import Number, Paper, Table

TEXTS = texts("figure3")
Parts: TypeAlias = Mapping[str, tuple[str, str]]
"""Name -> printed text and colour."""


def tint(colour: str, white: float) -> str:
    """A colour mixed with white. white: the share of white, from 0 to 1."""
    return mpl.colors.to_hex(
        [1 - (1 - channel) * (1 - white) for channel in mpl.colors.to_rgb(colour)]
    )


STEP: Parts = {
    "draft": ("Drafting", figures.SKY),
    "target": ("Target forward", figures.BLUE),
    "verification": ("Verification, the rest", figures.ORANGE),
    "shaping": ("Shaping", figures.VERMILION),
    "other": ("Other", tint(figures.GREY, 0.6)),
}
"""The parts of a step. Neighbours differ in lightness."""
SHAPING: Parts = {
    "budget": ("Budget", tint(figures.VERMILION, 0.0)),
    "redistribution": ("Redistribution", tint(figures.VERMILION, 0.4)),
    "proxy": ("Proxy formulation", tint(figures.VERMILION, 0.7)),
    "between": ("Between them", tint(figures.GREY, 0.6)),
}
"""The parts of shaping, in shades of its colour."""
LEFT = "ms a step, in profiling runs (whiskers: 95 % interval of the step)"
RIGHT = "% of ResiSpec's shaping"
FIELDS = (
    *(
        "num_emitted",
        "num_steps",
        "num_timed",
        "profiled_s",
        "draft_s",
        "target_s",
        "verify_s",
        "shaping_s",
    ),
    *("clock_s", "budget_s", "redistribution_s", "proxy_s"),
)
COLUMNS = (
    long.number("Step, ms", ".2f", "ms_per_step", "step"),
    *(
        long.number(f"{label}, ms", ".2f", "ms_per_step", part, brackets=part == "shaping")
        for part, (label, _) in STEP.items()
    ),
    long.number("Shaping, % of step", ".1f", "percent_of_step", "shaping"),
    long.number("Step over standard's, %", "+.1f", "percent_over_standard", "step"),
    *(
        long.number(f"{label}, % of shaping", ".0f", "percent_of_shaping", part, brackets=False)
        for part, (label, _) in SHAPING.items()
    ),
)
"""Columns of the table.

Intervals are printed for the step and its shaping; the CSV has all intervals.
"""


def make(plan: Plan) -> Artefact:
    """The figure, and its numbers as a table; a cell that is not done has a row that says so."""
    results = load(plan, FIELDS)
    frame = measure(results)
    varying, fixed = long.split_keys(results.cells, (*results.setting, "tree", "method"))
    columns = [*long.names(varying), *COLUMNS]
    lines = long.tabulate(frame, ["cell_id", *results.keys], columns, ("quantity", "part"))
    done = results.cells[results.cells.status == "done"]
    about = [*TEXTS["about"], _compared(frame, varying), *_clock(frame)]
    about += across_devices(done, results.setting)
    notes = footer(results, plan, about, [BRACKETS], TEXTS["picture"])
    table = Table("figure3", *lines, TEXTS["caption"] + fixed, frame, notes)
    drawing = partial(draw, frame, [key for key in varying if key != "method"])
    return Artefact((table,), {"figure3": drawing}, suffixes=("csv", "md"))


def measure(results: Results) -> pd.DataFrame:
    """A long frame, a row per cell, part and quantity; a cell not done has one without a number.

    Columns: cell_id, the keys, status, reason, num_prompts, part, quantity, value, lower, upper.
    """
    by_place = {results.place(about): rows for about, rows in results.each()}
    records: list[dict[str, Any]] = []
    for about, rows in results.each():
        numbers = {("", ""): ABSENT}
        if rows is not None:
            baseline = by_place.get(results.place(about | {"verifier": "standard"}))
            numbers = _quantities(rows, None if about["verifier"] == "standard" else baseline)
        for (part, quantity), number in numbers.items():
            records += long.records(about | {"part": part}, {quantity: number})
    return pd.DataFrame(records)


def _quantities(
    rows: pd.DataFrame, baseline: pd.DataFrame | None
) -> dict[tuple[str, str], Interval]:
    """Numbers of one cell by part and quantity.

    baseline: the rows that its step is compared with.
    """
    shaping = {part: rows[f"{part}_s"] for part in SHAPING if part != "between"}
    step = {
        "draft": rows.draft_s,
        "target": rows.target_s,
        "verification": rows.verify_s - rows.shaping_s,
        "shaping": rows.shaping_s,
        "other": rows.profiled_s - rows.draft_s - rows.target_s - rows.verify_s,
    }
    shaping["between"] = rows.shaping_s - sum(shaping.values())
    clock = {"clock": rows.clock_s}
    numbers = {("step", metrics.ACCEPTED_LENGTH.name): metrics.ACCEPTED_LENGTH.of(rows)}
    numbers["step", "timed_parts"] = ratio(rows.num_timed, rows.num_steps)
    for part, values in ({"step": rows.profiled_s} | step | shaping | clock).items():
        numbers[part, "ms_per_step"] = ratio(1e3 * values, rows.num_steps)
    for part, values in (step | clock).items():
        numbers[part, "percent_of_step"] = ratio(100 * values, rows.profiled_s)
    # the standard rule has no split
    for part, values in shaping.items() if rows.budget_s.any() else ():
        numbers[part, "percent_of_shaping"] = ratio(100 * values, rows.shaping_s)
    if baseline is not None and metrics.comparable(rows, baseline):
        gain = paired_gain(
            (rows.profiled_s, rows.num_steps), (baseline.profiled_s, baseline.num_steps)
        )
        gain = gain if metrics.timed_together(rows, baseline) else across_runs(gain)
        percent = [100 * (bound - 1) for bound in (gain.value, gain.lower, gain.upper)]
        numbers["step", "percent_over_standard"] = Interval(*percent)
    return numbers


def _clock(frame: pd.DataFrame) -> list[str]:
    """The note about the cost of the clock; empty if no cell is done."""
    parts = frame.value[(frame.part == "step") & (frame.quantity == "timed_parts")]
    percent = frame.value[(frame.part == "clock") & (frame.quantity == "percent_of_step")]
    if parts.empty:
        return []
    num_parts = Paper(parts.min(), parts.max(), ".0f")
    return [
        TEXTS["clock"].format(parts=num_parts, percent=Paper(percent.min(), percent.max(), ".1f"))
    ]


def _compared(frame: pd.DataFrame, varying: Sequence[str]) -> str:
    """The note on how much longer a step takes with ResiSpec, by the paper's Table 1 and here."""
    methods = ("specinfer", "resispec")
    names = {method: (f"{method}_accepted_length", f"{method}_tokens_per_s") for method in methods}
    table = paper("table1")
    standard_ms, shaped_ms = (
        1e3 * divide(table[above], table[below]) for above, below in names.values()
    )
    percent = 100 * (shaped_ms / standard_ms - 1)
    place = int(((table.temperature == 1) & (table.dataset == "cnn_dm")).to_numpy().argmax())
    values = {"own": standard_ms[place], "shaped": shaped_ms[place], "over": percent[place]}
    lines = [
        f"{', '.join(str(long.key_cell(row, key)) for key in varying)} {Number.of(row, '+.1f')} %"
        for row in frame[frame.quantity == "percent_over_standard"].to_dict("records")
    ]
    note = TEXTS["compared"].format(**values, least=percent.min(), most=percent.max())
    return note + (f" Here: {'; '.join(lines)}." if lines else "")


def draw(frame: pd.DataFrame, named: Sequence[str], width: float | None = None) -> Figure:
    """The figure: both panels, with a row for each cell.

    frame: that of `measure`. named: the keys that tell rows apart beside decoder and verifier.
    """
    cells = [
        rows for _, rows in frame.groupby(["cell_id", "decoder", *named, "verifier"], sort=False)
    ]
    size, is_narrow, beyond = (9.8, 1.3 + 0.5 * len(cells)), bool(width and width < 8), 1.4
    if width:
        height = (1.4 + 0.5 * len(cells)) * (2 if is_narrow else 1)
        size, beyond = (width, height), max(1.4, width / max(0.3 * width, width - 2.5))
    figure = Figure(figsize=size, layout="constrained")
    ratios = {"height_ratios": (1, 1)} if is_narrow else {"width_ratios": (2.4, 1)}
    shape = (2, 1) if is_narrow else (1, 2)
    left, right = figure.subplots(*shape, sharey=True, **ratios)
    steps = frame[(frame.part == "step") & (frame.quantity == "ms_per_step")]
    left.set_xlim(0, beyond * max([*steps.value, *steps.upper.dropna()], default=1))
    right.set_xlim(0, 100)
    places, title, place = [], "", 0.0
    for rows in cells:
        first = rows.iloc[0]
        heading = ", ".join(labels.text(key, first[key]) for key in ("decoder", *reversed(named)))
        text = figures.wrapped(heading, 0.7 * width) if width else heading
        place += 1 if heading == title else 1.9 + 0.5 * text.count("\n")
        if heading != title:
            for axes in (left, right) if is_narrow else (left,):
                axes.text(0, place - 0.5, text, fontsize=SIZE, fontweight="bold", va="bottom")
        title = heading
        places.append((place, labels.name("verifier", first.verifier)))
        _row(left, right, place, rows)
    left.set_yticks([place for place, _ in places], [name for _, name in places])
    left.set_ylim(place + 0.6, 0.7)
    spot = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.2, "frameon": False}
    spot |= {"handlelength": 1.0, "columnspacing": 1.0, "handletextpad": 0.4, "fontsize": SIZE}
    for axes, parts, x_label, columns in (
        (left, STEP, LEFT, len(STEP)),
        (right, SHAPING, RIGHT, 2),
    ):
        axes.set_xlabel(x_label, fontsize=SIZE)
        handles = [Patch(facecolor=colour, label=label) for label, colour in parts.values()]
        if width:
            room = width if is_narrow else width / 3.4
            columns = figures.legend_columns([label for label, _ in parts.values()], 0.85 * room)
        axes.legend(handles=handles, ncols=columns, **spot)
        figures.finish(axes)
        axes.grid(visible=False)
        axes.tick_params(axis="y", length=0)
    shaping = frame[(frame.quantity == "percent_of_step") & (frame.part == "shaping")].value
    if shaping.notna().any():
        figure.suptitle(f"Shaping takes at most {shaping.max():.1f} % of a step", fontsize=SIZE + 3)
    return figure


def _row(left: Axes, right: Axes, place: float, rows: pd.DataFrame) -> None:
    """Draw the bars of one cell, or its state if it is not done."""
    first = rows.iloc[0]
    if first.status != "done":
        left.text(0, place, f" {first.status}", fontsize=SIZE, va="center", color=figures.GREY)
        return
    frames = {quantity: group.set_index("part") for quantity, group in rows.groupby("quantity")}
    times, step = frames["ms_per_step"].value, frames["ms_per_step"].loc["step"]
    _stack(left, place, {part: (times[part], f"{times[part]:.1f}") for part in STEP}, STEP)
    if step.notna().all():
        spread = [[step.value - step.lower], [step.upper - step.value]]
        left.errorbar(
            step.value, place, xerr=spread, color=figures.BLACK, capsize=2.5, elinewidth=0.9
        )
    text = f"{step.value:.1f} ms, shaping {frames['percent_of_step'].value['shaping']:.1f} %"
    end = step.value if pd.isna(step.upper) else step.upper
    left.annotate(
        text, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=SIZE
    )
    if "percent_of_shaping" in frames:
        percent = frames["percent_of_shaping"].value
        _stack(
            right,
            place,
            {part: (percent[part], f"{percent[part]:.0f} %") for part in SHAPING},
            SHAPING,
        )
    else:
        right.text(2, place, "not split", fontsize=SIZE, va="center", color=figures.GREY)


def _stack(axes: Axes, place: float, widths: Mapping[str, tuple[float, str]], parts: Parts) -> None:
    """Draw parts as bars end to end.

    widths: name -> length and text, which is written if it fits.
    """
    start, room = 0.0, 0.075 * axes.get_xlim()[1]
    for part, (width, text) in widths.items():
        colour = parts[part][1]
        axes.barh(place, width, 0.72, start, color=colour, edgecolor="white", linewidth=0.6)
        if width >= room:
            style = {"ha": "center", "va": "center", "fontsize": SIZE - 0.5}
            ink = "white" if colour == figures.BLUE else "black"
            axes.text(start + width / 2, place, text, color=ink, **style)
        start += width


if __name__ == "__main__":
    raise SystemExit(run("figure3", make))
