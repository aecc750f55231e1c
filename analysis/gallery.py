"""The gallery's table and figure: what the usual checks and the audit say of every engine.

Usage: python -m analysis.gallery --profile embedded; it reads RESULTS/PROFILE/gallery.csv of `make gallery`.
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

from analysis import figures, labels, report, script
from analysis.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, Look
from analysis.report import Table, listed
from analysis.stats import Interval
from resispec.errors import InvalidInput, first_line

SLOW = 0.9
"""An accepted length below this share of the exact engine's is noticed."""
EXACT = ("o", "s", "D", "^", "v")
"""The markers of exact engines, which are grey."""
INDIGO, WINE, OLIVE = "#332288", "#882255", "#999933"
FAULTS = (
    Look(BLUE, "o"), Look(SKY, "^"), Look(ORANGE, "s"), Look(PURPLE, "D"), Look(BLACK, "v", ":"),
    Look(GREEN, "P"), Look(OLIVE, "<", ":"), Look(VERMILION, "X", "--"), Look(WINE, ">", "--"),
    Look(INDIGO, "h"),
)  # fmt: skip
"""The looks of the others, in the order of the file."""
TICKS_X = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
TICKS_Y = (0.5, 1, 2, 4, 10, 20, 50, 100)
HEADER = (
    "Engine", "Perplexity", "Greedy equal", "Accepted length", "Seeds", "Usual checks",
    "z", "Tokens", "Audit",
)  # fmt: skip
NOTES = (
    "![z against tokens](gallery.png)",
    "The usual checks. Perplexity: of the sampled output under the target, T = 1, brackets: 95 % bootstrap "
    "over prompts. Greedy equal: prompts whose continuation at T = 0 is the target's own. Accepted length: "
    "tokens per forward of the target, in brackets the ratio to an exact engine's with the same draft model. "
    "Seeds: with the same seed the same text, with another another. Usual checks names what would be "
    "noticed: a perplexity whose interval lies above that of the exact engine (a lower one reads as better), "
    "other continuations at T = 0, an accepted length below {slow} of the exact engine's, seeds that are not "
    "obeyed.",
    "The audit of the transcripts, which knows target and draft but not the engine. z: of the statistic with "
    "the least chance over all tokens, as a normal variable with that chance. Tokens: the first of the "
    "numbers of tokens in the figure from which on the transcripts are called biased. An exact engine is "
    "called biased with probability below 0.001 an audit; here a statistic may be {allowed} standard "
    "deviations out.",
)


def read(path: Path) -> pd.DataFrame:
    """The rows of a gallery. Raises InvalidInput when there are none."""
    if not path.is_file():
        raise InvalidInput(f"{path} is missing; `make gallery` makes it")
    try:
        frame = pd.read_csv(path)
        texts = ["thread", "status", "verdict", "reason", "device", "git_commit"]
        return frame.assign(**{name: frame[name].fillna("") for name in texts})
    except (ValueError, KeyError) as error:
        raise InvalidInput(f"{path} is no gallery ({first_line(error)}); `make gallery` makes one") from error


def engines(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The last row of every engine, which is about all of its tokens, with `first_biased`."""
    found = []
    for _, rows in frame.groupby("engine", sort=False):
        last = rows.iloc[-1].to_dict()
        found.append(last | {"first_biased": first_biased(rows)})
    return found


def first_biased(rows: pd.DataFrame) -> float:
    """The number of tokens from which on every larger one is called biased; NaN where the last is not."""
    far = rows.p_value.to_numpy() < rows.limit.to_numpy()
    if not far[-1:].all():
        return np.nan
    last_near = np.flatnonzero(~far)
    return float(rows.tokens.iloc[last_near[-1] + 1 if len(last_near) else 0])


def noticed(row: Mapping[str, Any], beside: Mapping[str, Any]) -> list[str]:
    """What the usual checks find wrong with an engine. beside: the exact one that it is compared with."""
    found = {
        "perplexity": row["perplexity_lower"] > beside["perplexity_upper"],
        "T = 0": row["greedy_equal"] < row["greedy_rows"],
        "accepted length": row["accepted_length"] < SLOW * beside["accepted_length"],
        "seeds": seeds(row) != "obeyed",
    }
    return [name for name, holds in found.items() if holds]


def seeds(row: Mapping[str, Any]) -> str:
    """What an engine makes of a request's seed."""
    if row["same_seed_equal"] < row["seed_rows"]:
        return "not repeatable"
    return "obeyed" if row["other_seed_equal"] < row["seed_rows"] else "no effect"


def table(frame: pd.DataFrame, profile: str) -> Table:
    """A row for every engine; one that did not run says why."""
    rows = engines(frame)
    by_name = {row["engine"]: row for row in rows}
    shown = pd.DataFrame([_shown(row, by_name.get(row["beside"], row)) for row in rows], columns=list(HEADER))
    done = frame[frame.status == "done"]
    allowed = labels.number(done.allowed_z.max(), ".1f")
    changed = " (changed)" if frame.git_is_dirty.any() else ""
    commit = f"{frame.git_commit.iloc[0][:10]}{changed}"
    source = f"Profile: {profile}. Device: {listed(frame.device)}. Commit: {commit}. Made by: make gallery."
    notes = (*(note.format(slow=SLOW, allowed=allowed) for note in NOTES), source)
    caption = "The gallery: engines with faults that shipped, and exact ones, on the embedded pair."
    return Table("gallery", frame, shown, 1, caption, notes)


def _shown(row: Mapping[str, Any], beside: Mapping[str, Any]) -> list[str]:
    name = f"[{row['engine']}]({row['thread']})" if "://" in row["thread"] else row["engine"]
    if row["status"] != "done":
        return [name, f"{row['status']}: {row['reason']}", *[labels.ABSENT] * (len(HEADER) - 2)]
    found = Interval(*(row[f"perplexity{end}"] for end in ("", "_lower", "_upper")))
    share = row["accepted_length"] / beside["accepted_length"]
    length = f"{row['accepted_length']:.2f} ({share:.2f} ×)" if share == share else labels.ABSENT
    return [
        name,
        labels.interval(found, ".1f"),
        f"{row['greedy_equal']:.0f} of {row['greedy_rows']:.0f}",
        length,
        seeds(row),
        ", ".join(noticed(row, beside)) or "pass",
        f"{np.copysign(row['normal_z'], row['z']):.1f} ({row['statistic']})",
        labels.number(row["first_biased"], ",.0f"),
        f"**{row['verdict']}**",
    ]


def message(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the figure shows, in a sentence."""
    done = [row for row in rows if row["status"] == "done"]
    faults, exact = ([row for row in done if bool(row["thread"]) is is_fault] for is_fault in (True, False))
    caught, wrong = (sum(row["verdict"] == "biased" for row in group) for group in (faults, exact))
    tokens = max((row["tokens"] for row in done), default=0)
    return (
        f"{caught} of {len(faults)} faults are called biased within {tokens:,.0f} tokens, "
        f"and {wrong or 'none'} of {len(exact)} exact engines"
    )


def draw(frame: pd.DataFrame) -> Figure:
    """How far out the audit's farthest statistic lies, against the number of tokens, both logarithmic."""
    figure = Figure(figsize=(8.4, 5.6), layout="constrained")
    axes = figure.subplots()
    every = engines(frame)
    done = frame[frame.status == "done"]
    done = done[done.tokens <= 1.1 * done.groupby("engine").tokens.max().median()]  # where most of them end
    top = np.log10(1.3 * max(done.normal_z.max(), 10))
    bottom = np.log10(0.8 * min(done.normal_z.min(), 1))
    axes.set_ylim(bottom, top)
    limit = np.log10(done.allowed_z.max())
    axes.axhspan(limit, top, color="0.96", zorder=0)
    axes.axhline(limit, color=GREY, linewidth=1, linestyle="--")
    said = f"called biased above {10**limit:.1f}"
    place = {"transform": axes.get_yaxis_transform(), "ha": "center", "va": "bottom"}
    axes.text(0.65, limit + 0.01, said, **place, fontsize=figures.SIZE, color="0.3")
    later = {row["engine"]: row["first_biased"] for row in every if row["first_biased"] > done.tokens.max()}
    ends = list(_lines(axes, done, later))
    figures.label_ends(axes, ends, (top - bottom) / 25)
    _ticks(axes, done.tokens.max(), top)
    axes.set_xlabel("emitted tokens that were audited", fontsize=figures.SIZE + 0.5)
    axes.set_ylabel("standard deviations of the statistic that is farthest out", fontsize=figures.SIZE + 0.5)
    figure.suptitle(message(every), fontsize=figures.SIZE + 2)
    return figure


def _lines(
    axes: Axes, done: pd.DataFrame, later: Mapping[str, float]
) -> Iterator[tuple[float, float, str, str]]:
    """Draw every engine's line; gives its end for `figures.label_ends`.

    later: engines that are called biased beyond the figure, and with how many tokens.
    """
    is_exact = {name: not rows.thread.iloc[0] for name, rows in done.groupby("engine", sort=False)}
    exact = iter([Look(GREY, marker) for marker in EXACT] * len(is_exact))
    faults = iter(FAULTS * len(is_exact))
    for name, rows in done.groupby("engine", sort=False):
        look = next(exact if is_exact[name] else faults)
        heights = np.log10(rows.normal_z)
        size = {"markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.3}
        axes.plot(rows.tokens, heights, color=look.colour, marker=look.marker, linestyle=look.line, **size)
        more = f"\n(biased from {later[name]:,.0f} tokens)" if name in later else ""
        yield float(rows.tokens.iloc[-1]), float(heights.iloc[-1]), f"{name}{more}", look.colour


def _ticks(axes: Axes, most: float, top: float) -> None:
    figures.finish(axes)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks([tick for tick in TICKS_X if tick <= 1.05 * most])
    axes.set_xticklabels([f"{tick:,}" for tick in TICKS_X if tick <= 1.05 * most])
    ticks = [tick for tick in TICKS_Y if axes.get_ylim()[0] <= np.log10(tick) <= top]
    axes.set_yticks(np.log10(ticks), [f"{tick:g}" for tick in ticks])


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    chosen = script.parser("analysis.gallery", __doc__.splitlines()[0]).parse_args(arguments)
    folder = chosen.results / chosen.profile
    try:
        frame = read(folder / "gallery.csv")
        made = table(frame, chosen.profile)
        paths = report.write(made, folder, ("md",)) + figures.save_figure(draw(frame), folder / "gallery")
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"gallery: {first_line(error)}\n")
        return 1
    sys.stdout.write(report.markdown(made) + "".join(f"wrote {path}\n" for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
