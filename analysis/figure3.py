"""Figure 3: where the time of a step goes, and where that of shaping does, decoder by decoder.

Usage: python -m analysis.figure3 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis import figures, labels, metrics
from analysis.artefact import Artefact, command, footer, key_cells, key_columns, key_texts, paper, split_keys
from analysis.load import SETTING, Plan, Results, load
from analysis.stats import ABSENT, BRACKETS, Interval, divide, paired_gain, ratio
from analysis.table import Cell, Column, Gap, Number, Paper, Picture, Table

Parts: TypeAlias = Mapping[str, tuple[str, str]]
"""Name -> what is printed, and the colour."""


def tint(colour: str, white: float) -> str:
    """A colour with so much white in it, from 0 to 1."""
    return mpl.colors.to_hex([1 - (1 - channel) * (1 - white) for channel in mpl.colors.to_rgb(colour)])


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
LEFT, RIGHT = "ms a step, in profiling runs (whiskers: 95 % interval of the step)", "% of ResiSpec's shaping"
ROOM = 0.055
"""A part that is narrower than this share of its panel has no number."""


COUNTS = ("num_emitted", "num_steps", "num_timed")
SECONDS = ("profiled_s", "draft_s", "target_s", "verify_s", "shaping_s", "clock_s")
SHAPING_SECONDS = {part: f"{part}_s" for part in SHAPING if part != "between"}
FIELDS = (*COUNTS, *SECONDS, *SHAPING_SECONDS.values())
COLUMNS = {
    "Step, ms": ("step", "ms_per_step", ".2f"),
    **{f"{label}, ms": (part, "ms_per_step", ".2f") for part, (label, _) in STEP.items()},
    "Shaping, % of step": ("shaping", "percent_of_step", ".1f"),
    "Step over standard's, %": ("step", "percent_over_standard", "+.1f"),
    **{f"{label}, % of shaping": (part, "percent_of_shaping", ".0f") for part, (label, _) in SHAPING.items()},
}
"""Header -> which part and which quantity of it a column prints, and how."""
DEFINITIONS = (
    "A step is one draft, one forward of the target, verification and commit. Drafting: filling the tree. "
    "Target forward: over the tree, with the softmax. Shaping, a part of verification: from the law that a "
    "sibling was tested against to the law after its rejection; the standard rule's is a subtraction and a "
    "normalisation. Verification, the rest: chances of acceptance, the draft's law of the next sibling, "
    "drawing, walking down the tree. Other: cutting the caches to the accepted path, and the loop itself. "
    "These five add up to the step.",
    "ResiSpec's shaping, in the paper's words. Budget: the mass Z and the first projection min(Z q, p). "
    "Redistribution: what this clipped off, spread over the capacity that is left. Proxy formulation: the "
    "law norm(max(p - k, 0)) of the next test; k = p - r itself is never formed, since this law is the "
    "residual r, normalised. Between them: calls and the clock. These four add up to shaping. A law covers "
    "all siblings of a node that is visited, so a residual is shaped once for each of them, rejected or not.",
    "EAGLE, softmax as q: the paper's reading of EAGLE's candidates, here for both rules. Told that "
    "candidates are point masses, which they are, ResiSpec is the standard rule, and the two do not differ.",
    "Step over standard's: the time of a step over that of the same decoder with the standard rule. It also "
    "holds what longer accepted paths cost, which visit more nodes; ResiSpec's are those of a biased output, "
    "see Tables 1 and 2.",
)


def seconds(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Seconds of every prompt in a "step", in the parts of STEP and of SHAPING, and in the "clock"."""
    named = {part: rows[field] for part, field in SHAPING_SECONDS.items()}
    return {
        "step": rows.profiled_s,
        "draft": rows.draft_s,
        "target": rows.target_s,
        "verification": rows.verify_s - rows.shaping_s,
        "shaping": rows.shaping_s,
        "other": rows.profiled_s - rows.draft_s - rows.target_s - rows.verify_s,
        **named,
        "between": rows.shaping_s - sum(named.values()),
        "clock": rows.clock_s,
    }


def measure(results: Results) -> pd.DataFrame:
    """One row for every cell, part and quantity; a cell that is not done has one row, without a number.

    Columns: cell_id, the keys, status, reason, num_prompts, part, quantity, value, lower, upper.
    """
    cells, same = results.cells.to_dict("records"), [key for key in results.keys if key != "verifier"]
    baselines = {
        tuple(cell[key] for key in same): results.rows.get(cell["cell_id"])
        for cell in cells
        if cell["verifier"] == "standard"
    }
    records = []
    for cell in cells:
        rows = results.rows.get(cell["cell_id"])
        baseline = baselines.get(tuple(cell[key] for key in same))
        numbers = {("", ""): ABSENT}
        if rows is not None:
            numbers = dict(_quantities(rows, None if cell["verifier"] == "standard" else baseline))
        for (part, quantity), interval in numbers.items():
            records.append(results.about(cell) | {"part": part, "quantity": quantity} | vars(interval))
    return pd.DataFrame(records)


def _quantities(
    rows: pd.DataFrame, baseline: pd.DataFrame | None
) -> Iterator[tuple[tuple[str, str], Interval]]:
    """Part, quantity and value of one cell. baseline: the rows that its step is compared with."""
    spent = seconds(rows)
    yield ("step", metrics.ACCEPTED_LENGTH.name), metrics.ACCEPTED_LENGTH.of(rows)
    yield ("step", "timed_parts"), ratio(rows.num_timed, rows.num_steps)
    for part, values in spent.items():
        yield (part, "ms_per_step"), ratio(1e3 * values, rows.num_steps)
    for part in (*STEP, "clock"):
        yield (part, "percent_of_step"), ratio(100 * spent[part], spent["step"])
    if rows.budget_s.any():  # the standard rule's shaping is not split
        for part in SHAPING:
            yield (part, "percent_of_shaping"), ratio(100 * spent[part], spent["shaping"])
    if baseline is not None:
        gain = paired_gain((rows.profiled_s, rows.num_steps), (baseline.profiled_s, baseline.num_steps))
        percent = [100 * (bound - 1) for bound in (gain.value, gain.lower, gain.upper)]
        yield ("step", "percent_over_standard"), Interval(*percent)


def make(plan: Plan) -> Artefact:
    """The figure, and its numbers as a table; a cell that is not done has a row that says so."""
    results = load(plan, FIELDS)
    frame = measure(results)
    keys = (*SETTING, *results.more, "tree", "method")
    varying, fixed = split_keys(results.cells.assign(method=""), keys)
    lines = []
    for _, rows in frame.groupby(["cell_id", *results.keys], sort=False):
        first, numbers = rows.iloc[0], _numbers(rows)
        if first.status != "done":
            numbers[0] = Gap(first.status, first.reason)
        lines.append((*key_cells(first, varying), *numbers))
    columns = [Column(f"{part} {name}", header, "number") for header, (part, name, _) in COLUMNS.items()]
    about = (*DEFINITIONS, _compared(frame, varying), *_clock(frame))
    picture = Picture("The time of a step by part", "figure3.png")
    table = Table(
        "figure3",
        (*key_columns(varying), *columns),
        tuple(lines),
        f"Figure 3 of the paper, {plan.profile} profile: the time of a step by part.{fixed}",
        frame,
        footer(results, plan, about, [BRACKETS], picture),
    )
    drawn = draw(frame, [key for key in varying if key != "method"])
    return Artefact((table,), {"figure3": drawn}, suffixes=("csv", "md"))


def _numbers(rows: pd.DataFrame) -> list[Cell]:
    """The numbers of a line, with intervals for the step and its shaping; the others' are in the CSV."""
    known = {(row["part"], row["quantity"]): row for row in rows.to_dict("records")}
    numbers: list[Cell] = []
    for part, quantity, spec in COLUMNS.values():
        number = Number.of(known.get((part, quantity), ABSENT), spec)
        numbers.append(number if part in ("step", "shaping") else Number(number.value, spec=spec))
    return numbers


def _clock(frame: pd.DataFrame) -> list[str]:
    """The costs of the clock, in one note; none where no cell is done."""
    parts = frame.value[(frame.part == "step") & (frame.quantity == "timed_parts")]
    percent = frame.value[(frame.part == "clock") & (frame.quantity == "percent_of_step")]
    if parts.empty:
        return []
    return [
        "Cells that are profiled are cells of their own, and no throughput is taken from them: the clock "
        "waits for the device at both ends of every part. It times "
        f"{Paper(parts.min(), parts.max(), '.0f')} parts a step; as many empty ones take "
        f"{Paper(percent.min(), percent.max(), '.1f')} % of the step, mostly within shaping, whose "
        "parts are the shortest. Nothing is subtracted. On a GPU waiting also keeps the host from running "
        "ahead, so a profiled step is longer than one whose throughput is measured.",
    ]


def _compared(frame: pd.DataFrame, varying: Sequence[str]) -> str:
    """How much longer a step takes with ResiSpec, as the paper's Table 1 implies it, and here."""
    methods = ("specinfer", "resispec")
    names = {method: (f"{method}_accepted_length", f"{method}_tokens_per_s") for method in methods}
    table = paper("table1", ("temperature", "dataset", *names["specinfer"], *names["resispec"]))
    own, shaped = (1e3 * divide(table[above], table[below]) for above, below in names.values())
    over = 100 * (shaped / own - 1)
    here = [
        f"{', '.join(key_texts(row, varying))} {Number.of(row, '+.1f')} %"
        for row in frame[frame.quantity == "percent_over_standard"].to_dict("records")
    ]
    first = int(((table.temperature == 1) & (table.dataset == "cnn_dm")).to_numpy().argmax())
    return (
        "The paper's Figure 3 comes without numbers. Accepted length over tokens/s is the time of a step, so "
        f"its Table 1 (RTX 3090) implies {own[first]:.1f} ms for SpecInfer and {shaped[first]:.1f} ms for "
        f"ResiSpec on CNN/DM at T = 1: {over[first]:+.1f} %, and {over.min():+.1f} to {over.max():+.1f} % "
        "over its six settings. That is a Step over standard's, in throughput runs, for orientation where "
        "models or hardware are others." + (f" Here: {'; '.join(here)}." if here else "")
    )


def draw(frame: pd.DataFrame, named: Sequence[str]) -> Figure:
    """Both panels, with a row for every cell.

    frame: of `measure`. named: the keys that tell rows apart beside decoder and
    verifier.
    """
    cells = [rows for _, rows in frame.groupby(["cell_id", "decoder", *named, "verifier"], sort=False)]
    figure = Figure(figsize=(9.8, 1.3 + 0.5 * len(cells)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2.4, 1))
    steps = frame[(frame.part == "step") & (frame.quantity == "ms_per_step")]
    left.set_xlim(0, 1.4 * max([*steps.value, *steps.upper.dropna()], default=1))
    right.set_xlim(0, 100)
    places, title, place = [], "", 0.0
    for rows in cells:
        first = rows.iloc[0]
        own = ", ".join(labels.text(key, first[key]) for key in ("decoder", *reversed(named)))
        place += 1.9 if own != title else 1
        if own != title:
            left.text(0, place - 0.5, own, fontsize=figures.SIZE, fontweight="bold", va="bottom")
        title = own
        places.append((place, labels.name("verifier", first.verifier)))
        _row(left, right, place, rows)
    left.set_yticks([place for place, _ in places], [name for _, name in places])
    left.set_ylim(place + 0.6, 0.7)
    for axes, parts, measure in ((left, STEP, LEFT), (right, SHAPING, RIGHT)):
        axes.set_xlabel(measure, fontsize=figures.SIZE)
        _legend(axes, parts, columns=len(parts) if axes is left else 2)
    return figure


def _row(left: Axes, right: Axes, place: float, rows: pd.DataFrame) -> None:
    """One cell's bars, or why there are none."""
    first = rows.iloc[0]
    if first.status != "done":
        left.text(0, place, f" {first.status}", fontsize=figures.SIZE, va="center", color=figures.GREY)
        return
    found = {quantity: own.set_index("part") for quantity, own in rows.groupby("quantity")}
    spent = found["ms_per_step"]
    _stack(left, place, {part: (spent.value[part], f"{spent.value[part]:.1f}") for part in STEP}, STEP)
    whole = spent.loc["step"]
    if whole.notna().all():
        spread = [[whole.value - whole.lower], [whole.upper - whole.value]]
        left.errorbar(whole.value, place, xerr=spread, color=figures.BLACK, capsize=2.5, elinewidth=0.9)
    said = f"{whole.value:.1f} ms, shaping {found['percent_of_step'].value['shaping']:.1f} %"
    end = whole.value if pd.isna(whole.upper) else whole.upper
    left.annotate(said, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=figures.SIZE)
    if "percent_of_shaping" in found:
        percent = found["percent_of_shaping"].value
        _stack(right, place, {part: (percent[part], f"{percent[part]:.0f} %") for part in SHAPING}, SHAPING)
    else:
        right.text(2, place, "not split", fontsize=figures.SIZE, va="center", color=figures.GREY)


def _stack(axes: Axes, place: float, widths: Mapping[str, tuple[float, str]], parts: Parts) -> None:
    """Parts one after another. widths: name -> its length and its text, which is written where it fits."""
    start, room = 0.0, ROOM * axes.get_xlim()[1]
    for part, (width, text) in widths.items():
        colour = parts[part][1]
        axes.barh(place, width, 0.72, start, color=colour, edgecolor="white", linewidth=0.6)
        if width >= room:
            style = {"ha": "center", "va": "center", "fontsize": figures.SIZE - 0.5}
            ink = "white" if colour == figures.BLUE else "black"
            axes.text(start + width / 2, place, text, color=ink, **style)
        start += width


def _legend(axes: Axes, parts: Parts, columns: int) -> None:
    handles = [Patch(facecolor=colour, label=label) for label, colour in parts.values()]
    spot = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.2, "frameon": False}
    spacing = {"handlelength": 1.0, "columnspacing": 1.0, "handletextpad": 0.4}
    axes.legend(handles=handles, ncols=columns, fontsize=figures.SIZE, **spot, **spacing)
    figures.finish(axes)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)


main = command("figure3", make)


if __name__ == "__main__":
    sys.exit(main())
