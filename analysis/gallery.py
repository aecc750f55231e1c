"""Table and figure of the gallery: what the usual checks and the audit say of every engine.

Usage: python -m analysis.gallery; it reads RESULTS/PAIR/gallery.csv.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import audits, figures, labels
from analysis.artefact import texts
from analysis.figures import SIZE, finish, save_figure
from analysis.table import Notes, Table, markdown, plain
from analysis.terminal import printed
from referee.inputs import EMBEDDED
from resispec.errors import CommandParser, InvalidInput, in_one_line
from resispec.files import write_atomically

TEXTS = texts("gallery")
WORDS = (
    "thread", "where", "status", "verdict", "reason", "device", "git_commit", "bet",
    "against_control",
)  # fmt: skip
"""Columns of words. The last one is absent from a gallery without controls."""
SLOW = 0.9
"""The share of the exact engine's accepted length below which the usual checks notice a loss."""
FAULT, EXACT = figures.VERMILION, figures.BLUE
"""Colours of engines with a known fault and of the others."""
TICKS_X = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)


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
    """The number of tokens at which bets decide or, if less, from which on all rows say biased.

    NaN if neither is so.
    """
    is_far = (rows.p_value < rows.limit).to_numpy()
    stays_far = np.logical_and.accumulate(is_far[::-1])[::-1]
    by_bets = rows.bet_tokens.iloc[-1] if "bet_tokens" in rows else np.nan
    return float(np.fmin(rows.tokens[stays_far].min(), by_bets))


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
    """The page: a row for each engine, which says why if it did not run, and the notes."""
    rows, has_faults = engines(frame), bool((frame.thread != "").any())
    kind = (
        "engines with faults that shipped, and exact ones"
        if has_faults
        else "engines with their defaults"
    )
    notes = list(TEXTS["notes"])
    if "bet" in frame:
        notes.append(TEXTS["bet"])
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
    if "bet" in row:
        cells["Bet"] = row["bet"] or labels.ABSENT
    if row.get("where"):
        cells["Fault in"] = row["where"]
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
    num_acquitted = sum(audits.is_acquitted([verdict]) for verdict in exact)
    acquitted = "all" if num_acquitted == len(exact) else f"{num_acquitted} of"
    return (
        f"found {hits} of {len(faults)} faults within {tokens:,.0f} tokens, "
        f"acquitted {acquitted} {len(exact)} exact engines"
    )


def draw(frame: pd.DataFrame) -> Figure:
    """The figure: each engine's tokens until the audit says biased or, hollow, all that it read."""
    rows = [row for row in engines(frame) if row["status"] == "done"]
    figure = Figure(figsize=(7.4, 1.3 + 0.24 * len(rows)), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    axes.hlines(places, TICKS_X[0], [_end(row) for row in rows], colors="0.7", linewidth=1)
    for place, row in zip(places, rows, strict=True):
        colour = FAULT if row["thread"] else EXACT
        fill = colour if row["verdict"] == "biased" else "white"
        # no number of tokens, but a single one
        marker = "s" if row["verdict"] == "biased" and np.isnan(row["first_biased"]) else "o"
        looks = {"facecolor": fill, "edgecolor": colour, "marker": marker, "zorder": 3}
        axes.scatter([_end(row)], [place], s=30, **looks)
    axes.set_yticks(places, [row["engine"] for row in rows])
    axes.invert_yaxis()
    finish(axes)
    axes.set_xscale("log")
    axes.minorticks_off()
    most = max(row["tokens"] for row in rows)
    ticks = [tick for tick in TICKS_X if tick <= 1.05 * most]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    label = "emitted tokens until the audit says biased (hollow: it did not, within so many;\n"
    label += "square: for single tokens that filters leave out)"
    axes.set_xlabel(label, fontsize=SIZE + 0.5)
    figure.suptitle(message(rows), fontsize=SIZE + 2)
    return figure


def _end(row: Mapping[str, Any]) -> float:
    """The number of tokens from which on an engine is called biased, or that were read."""
    return float(row["tokens"] if np.isnan(row["first_biased"]) else row["first_biased"])


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
    sys.stdout.write(f"{message(engines(frame))}\n")


if __name__ == "__main__":
    sys.exit(main())
