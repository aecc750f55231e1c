"""The figure of the joint optimum: what exact verifiers leave of it on small trees with i.i.d. draws.

Usage: python -m analysis.joint --profile embedded; it reads RESULTS/PROFILE/joint.csv of `make joint`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures, script
from analysis.figures import SIZE
from resispec.errors import InvalidInput, first_line

OPTIMUM = "joint optimum"
VERIFIERS = ("standard", "traversal", "optimal", "traversal_optimal", "level_optimal")
"""Those that take every tree with these draws, but for `naive`, which leaves too much for the scale."""
LINEAR = 1.0
"""Up to here, in %, the axis is linear, and beyond logarithmic."""
TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50)


def read(path: Path) -> pd.DataFrame:
    """The rows of joint.csv. Raises InvalidInput when there are none."""
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: {first_line(error)}; `make joint` makes it") from error


def left(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per shape, world and verifier: `left`, how many % of the optimum it leaves."""
    keys = ["shape", "vocab", "laws", "seed"]
    rows = frame[(frame.possible == 1) & (frame.draws == "iid")]
    optimum = rows[rows.verifier == OPTIMUM].set_index(keys).accepted.rename("optimum")
    rows = rows[rows.verifier.isin(VERIFIERS)].join(optimum, on=keys)
    # Where nothing is left the solver's rounding remains.
    return rows.assign(left=(100 * (1 - rows.accepted / rows.optimum)).clip(lower=0).round(4))


def message(rows: pd.DataFrame) -> str:
    """What the figure shows, in a sentence."""
    means = rows.groupby("verifier").left.mean()
    best, second = VERIFIERS[-1], VERIFIERS[-2]
    return (
        f"Of the most that an exact verifier can accept, {best} leaves {means[best]:.1f} % in the mean, "
        f"{second} {means[second]:.1f} %"
    )


def draw(frame: pd.DataFrame) -> Figure:
    """Verifier by verifier, the mean over the worlds of every shape, and from the least to the most."""
    rows = left(frame)
    spread = rows.groupby(["verifier", "shape"], sort=False).left.agg(value="mean", lower="min", upper="max")
    shapes = list(dict.fromkeys(rows["shape"]))
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    axes = figure.subplots()
    looks = figures.looks(VERIFIERS)
    for place, name in enumerate(VERIFIERS):
        x = np.arange(len(shapes)) + 0.15 * (place - (len(VERIFIERS) - 1) / 2)
        figures.line(axes, x, spread.loc[name].reindex(shapes), replace(looks[name], line="none"), name)
    worlds = rows.groupby(["verifier", "shape"]).size().max()
    _frame(axes, shapes)
    axes.set_ylabel(f"% of the joint optimum that is left, {worlds} worlds", fontsize=SIZE + 0.5)
    figure.legend(loc="outside lower center", ncols=len(VERIFIERS), frameon=False, fontsize=SIZE)
    figure.suptitle(message(rows), fontsize=SIZE + 2)
    return figure


def _frame(axes: Axes, shapes: Sequence[str]) -> None:
    figures.finish(axes)
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.set_ylim(-0.06, TICKS[-1])
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.set_xticks(range(len(shapes)), shapes)
    axes.set_xlabel("shape of the tree: children a level", fontsize=SIZE + 0.5)
    for place in range(1, len(shapes)):
        axes.axvline(place - 0.5, color="0.9", linewidth=0.6)


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    chosen = script.parser("analysis.joint", __doc__.splitlines()[0]).parse_args(arguments)
    stem = chosen.results / chosen.profile / "joint"
    try:
        paths = figures.save_figure(draw(read(stem.with_suffix(".csv"))), stem)
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"joint: {first_line(error)}\n")
        return 1
    sys.stdout.write("".join(f"wrote {path}\n" for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
