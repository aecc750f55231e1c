"""Table and figure of the gallery: what the usual checks and the audit say of every engine.

Usage: python -m analysis.gallery; it reads RESULTS/PAIR/gallery.csv.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import labels
from analysis.artefact import texts
from analysis.figures import GREY, SIZE, finish, label_ends, save_figure
from analysis.table import Notes, Table, markdown, plain
from analysis.terminal import printed
from referee.inputs import EMBEDDED
from resispec.errors import CommandParser, InvalidInput, in_one_line
from resispec.files import write_atomically

TEXTS = texts("gallery")
WORDS = ("thread", "status", "verdict", "reason", "device", "git_commit", "against_control")
"""Columns of words. The last one is absent from a gallery without controls."""
SLOW = 0.9
"""The share of the exact engine's accepted length below which the usual checks notice a loss."""
PLAIN = tuple(
    (GREY, marker, dashes)
    for dashes, marker in product(("-", "--", ":"), ("o", "s", "D", "^", "v"))
)
"""Colours, markers and dashes of engines without a known fault that are not called biased."""
FAULTS = (
    ("#0072B2", "o", "-"), ("#56B4E9", "^", "-"), ("#E69F00", "s", "-"), ("#CC79A7", "D", "-"),
    ("#000000", "v", ":"), ("#009E73", "P", "-"), ("#999933", "<", ":"), ("#D55E00", "X", "--"),
    ("#882255", ">", "--"), ("#332288", "h", "-"), ("#D55E00", "o", ":"), ("#0072B2", "P", "--"),
    ("#009E73", "s", ":"), ("#7A7A7A", "X", "-"),
)  # fmt: skip
"""Colours, markers and dashes of the other engines, in the order of the file."""
TICKS_X = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)


def read(path: Path) -> pd.DataFrame:
    """The rows of a gallery's CSV. Raises InvalidInput when it is missing or no engine ran."""
    if not path.is_file():
        raise InvalidInput(f"{path} is missing; `make gallery` makes it")
    frame = pd.read_csv(path, dtype=dict.fromkeys(WORDS, str))
    if "done" not in frame.status.values:
        raise InvalidInput(
            f"{path}: no engine ran, see its column reason; `make gallery` makes it again"
        )
    return frame.fillna(dict.fromkeys(WORDS, ""))


def engines(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The last row of every engine, which is about all of its tokens, with `first_biased`."""
    groups = frame.groupby("engine", sort=False)
    return [rows.iloc[-1].to_dict() | {"first_biased": first_biased(rows)} for _, rows in groups]


def first_biased(rows: pd.DataFrame) -> float:
    """The number of tokens from which on all rows are called biased; NaN if the last row is not."""
    is_far = (rows.p_value < rows.limit).to_numpy()
    stays_far = np.logical_and.accumulate(is_far[::-1])[::-1]
    return float(rows.tokens[stays_far].min())


def noticed(row: Mapping[str, Any], beside: Mapping[str, Any]) -> list[str]:
    """The usual checks that notice a fault of an engine.

    beside: the exact engine to compare it with.
    """
    faults = {
        "perplexity": row["perplexity_lower"] > beside["perplexity_upper"],
        "T = 0": row["greedy_equal"] < row["greedy_rows"],
        "accepted length": row["accepted_length"] < SLOW * beside["accepted_length"],
        "seeds": seeds(row) != "obeyed",
    }
    return [name for name, holds in faults.items() if holds]


def seeds(row: Mapping[str, Any]) -> str:
    """Words for how an engine treats a request's seed."""
    if row["same_seed_equal"] < row["seed_rows"]:
        return "not repeatable"
    return "obeyed" if row["other_seed_equal"] < row["seed_rows"] else "no effect"


def table_of(frame: pd.DataFrame, pair: str) -> Table:
    """The page: a row for each engine, and the notes;
    the row of an engine that did not run says why.
    """
    rows, has_faults = engines(frame), bool((frame.thread != "").any())
    kind = (
        "engines with faults that shipped, and exact ones"
        if has_faults
        else "engines with their defaults"
    )
    notes = list(TEXTS["notes"])
    if "against_control" in frame:
        notes.append(TEXTS["control"])
    by_name = {row["engine"]: row for row in rows}
    shown = pd.DataFrame([_shown(row, by_name.get(row["beside"], row)) for row in rows])
    shown = shown.fillna(labels.ABSENT).set_index("Engine")
    allowed = labels.number(frame[frame.status == "done"].allowed_z.max(), ".1f")
    notes = [note.format(slow=SLOW, allowed=allowed) for note in notes]
    commit = frame.git_commit.iloc[0][:10] + (" (changed)" if frame.git_is_dirty.any() else "")
    devices = ", ".join(dict.fromkeys(filter(None, frame.device)))
    origin = f"Made by: make gallery{'' if pair == EMBEDDED else f' PROFILE={pair}'}."
    notes.append(f"Profile: {pair}. Device: {devices}. Commit: {commit}. {origin}")
    caption = f"The gallery: {kind}, on the {pair} pair."
    table_notes = Notes(tuple(notes), picture="z against tokens")
    return plain("gallery", frame, caption, table_notes, shown=shown)


def _shown(row: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, str]:
    """The texts of an engine's row by their headers; two if it did not run.

    beside: see `noticed`.
    """
    name = f"[{row['engine']}]({row['thread']})" if "://" in row["thread"] else row["engine"]
    if row["status"] != "done":
        return {"Engine": name, "Perplexity": f"{row['status']}: {row['reason']}"}
    value, lower, upper = (
        labels.number(row[f"perplexity{end}"], ".1f") for end in ("", "_lower", "_upper")
    )
    share = row["accepted_length"] / beside["accepted_length"]
    length = labels.number(row["accepted_length"], ".2f") + (
        f" ({share:.2f} ×)" if share == share else ""
    )
    smallest = max(row["smallest_temperature"], row["smallest_draft"])
    power = f" (TV {smallest:.2g})" if row["verdict"] == "no bias seen" else ""
    cells = {
        "Engine": name,
        "Perplexity": value if lower == labels.ABSENT else f"{value} [{lower}, {upper}]",
        "Greedy equal": f"{row['greedy_equal']:.0f} of {row['greedy_rows']:.0f}",
        "Accepted length": length,
        "Seeds": seeds(row),
        "Usual checks": ", ".join(noticed(row, beside)) or "pass",
        "z": f"{np.copysign(row['normal_z'], row['z']):.1f} ({row['statistic']})",
        "Tokens": labels.number(row["first_biased"], ",.0f"),
        "Audit": f"**{row['verdict']}**{power}",
    }
    if "against_control" in row:
        cells["Control"] = row["against_control"] or labels.ABSENT
        cells["Edges"] = labels.number(row["edge_tokens"], ".0f")
    return cells


def message(rows: Sequence[Mapping[str, Any]]) -> str:
    """The figure's message, in a sentence."""
    runs = [row for row in rows if row["status"] == "done"]
    faults = [row["verdict"] for row in runs if row["thread"]]
    exact = [row["verdict"] for row in runs if not row["thread"]]
    hits, alarms = faults.count("biased"), exact.count("biased")
    tokens = max((row["tokens"] for row in runs), default=0)
    if not faults:
        inside = alarms and all(row["normal_z"] <= row["allowed_z"] for row in runs)
        note = ",\nfor tokens that filters leave out" if inside else ""
        return (
            f"{alarms or 'none'} of {len(exact)} runs are called biased within {tokens:,.0f} "
            f"tokens{note}"
        )
    return (
        f"{hits} of {len(faults)} faults are called biased within {tokens:,.0f} tokens, "
        f"and {alarms or 'none'} of {len(exact)} exact engines"
    )


def draw(frame: pd.DataFrame) -> Figure:
    """The figure: the audit's farthest statistic against the number of tokens, both logarithmic."""
    figure = Figure(figsize=(8.4, 5.6), layout="constrained")
    axes = figure.subplots()
    last_rows, runs = engines(frame), frame[frame.status == "done"]
    # where most engines end
    runs = runs[runs.tokens <= 1.1 * runs.groupby("engine").tokens.max().median()]
    top = np.log10(1.3 * max(runs.normal_z.max(), 10))
    bottom = np.log10(0.8 * min(runs.normal_z.min(), 1))
    axes.set_ylim(bottom, top)
    limit, max_tokens = np.log10(runs.allowed_z.max()), runs.tokens.max()
    axes.axhspan(limit, top, color="0.96", zorder=0)
    axes.axhline(limit, color=GREY, linewidth=1, linestyle="--")
    place = {"transform": axes.get_yaxis_transform(), "ha": "center", "va": "bottom"}
    axes.text(
        0.65,
        limit + 0.01,
        f"called biased above {10**limit:.1f}",
        **place,
        fontsize=SIZE,
        color="0.3",
    )
    ends = list(_lines(axes, runs, last_rows))
    label_ends(axes, ends, (top - bottom) / 25, relpos=(0, 0.5))  # from the beginning of the name
    finish(axes)
    axes.set_xscale("log")
    axes.minorticks_off()
    ticks = [tick for tick in TICKS_X if tick <= 1.05 * max_tokens]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    heights = [tick for tick in (0.5, 1, 2, 4, 10, 20, 50, 100) if bottom <= np.log10(tick) <= top]
    axes.set_yticks(np.log10(heights), [f"{tick:g}" for tick in heights])
    axes.set_xlabel("emitted tokens that were audited", fontsize=SIZE + 0.5)
    axes.set_ylabel(
        "standard deviations of the statistic that is farthest out", fontsize=SIZE + 0.5
    )
    figure.suptitle(message(last_rows), fontsize=SIZE + 2)
    return figure


def _lines(
    axes: Axes, runs: pd.DataFrame, last_rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[float, float, str, str]]:
    """Draw the line of each engine; yield its end for `label_ends`. last_rows: see `engines`."""
    plain, faults = cycle(PLAIN), cycle(FAULTS)
    notes = {row["engine"]: _note(row, runs.tokens.max()) for row in last_rows}
    for name, rows in runs.groupby("engine", sort=False):
        is_plain = not rows.thread.iloc[0] and rows.verdict.iloc[0] != "biased"
        colour, marker, dashes = next(plain if is_plain else faults)
        heights = np.log10(rows.normal_z)
        size = {"markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.3}
        axes.plot(rows.tokens, heights, color=colour, marker=marker, linestyle=dashes, **size)
        yield float(rows.tokens.iloc[-1]), float(heights.iloc[-1]), f"{name}{notes[name]}", colour


def _note(row: Mapping[str, Any], max_tokens: float) -> str:
    """A second line for the name of a biased engine if its line does not show the bias; else ""."""
    if "rules out" in row["reason"]:
        return "\n(biased: it emits tokens that filters leave out)"
    return (
        f"\n(biased from {row['first_biased']:,.0f} tokens)"
        if row["first_biased"] > max_tokens
        else ""
    )


@in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = CommandParser(
        prog="python -m analysis.gallery",
        description=__doc__.splitlines()[0],
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="the folder of PAIR/")
    parser.add_argument("--pair", default=EMBEDDED, help="as for python -m referee.gallery")
    options = parser.parse_args(arguments)
    stem = options.results / options.pair / "gallery"
    frame = read(stem.with_suffix(".csv"))
    made, page = table_of(frame, options.pair), stem.with_suffix(".md")
    write_atomically(page, markdown(made))
    paths = (page, *save_figure(draw(frame), stem))
    sys.stdout.writelines((printed(made, str(page)), *(f"wrote {path}\n" for path in paths)))


if __name__ == "__main__":
    sys.exit(main())
