"""Page and figure of the joint optimum of small trees, from docs/studies/joint_optimum.py."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import figures, labels
from analysis.table import Table, plain

OPTIMUM = "joint optimum"
DRAFTED = "joint optimum, drafted knowledge"
COMPARED = "traversal_optimal"
DRAWN = ("standard", "traversal", "optimal", "traversal_optimal", "level_optimal")
"""Verifiers of the figure: they take every tree with i.i.d. draws.

`naive` does too, and leaves too much.
"""
UNEVEN = "2-1, second only"
"""The shape in which one sibling has a child and the other has none."""
ROUNDING = 1e-7
"""Smaller differences of accepted tokens are the solver's."""
TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50)


def _left(means: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """By how much, in %, columns are less than the optimum; the solver's rounding is not shown."""
    return (100 * (1 - means[columns].div(means[OPTIMUM], axis=0))).round(4) + 0.0  # no -0


def left_by_verifiers(frame: pd.DataFrame) -> Table:
    """A row per shape, draws and laws: what the optimum accepts, and what verifiers leave, in %."""
    keys = ["shape", "vocab", "draws", "laws"]
    means = frame[frame.possible == 1].pivot_table("accepted", keys, "verifier", sort=False)
    names = sorted(set(means) - {OPTIMUM}, key=lambda name: labels.rank("verifier", name))
    left = _left(means, names)
    shown = pd.concat((means[OPTIMUM], left), axis=1).reset_index().rename(columns={"vocab": "V"})
    caption = (
        "Tokens that the best exact verifier accepts, and how many of them, in %, each "
        "verifier leaves."
    )
    return plain("joint", shown, caption, specs=dict.fromkeys(left, ".1f") | {OPTIMUM: ".3f"})


def left_by_knowledge(frame: pd.DataFrame) -> Table:
    """The optimum of several worlds, with what it takes to know laws that were not drafted."""
    keys = ["shape", "vocab", "possible", "laws"]
    means = frame[frame.possible > 1].pivot_table("accepted", keys, "verifier", sort=False)
    names = {DRAFTED: "price of not knowing, %", COMPARED: f"{COMPARED} leaves, %"}
    shown = pd.concat((means[OPTIMUM], _left(means, list(names)).rename(columns=names)), axis=1)
    caption = (
        "What of the joint optimum is lost where laws are known at drafted places only; "
        "i.i.d. draws."
    )
    specs = dict.fromkeys(shown, ".3f")
    renamed = shown.reset_index().rename(columns={"vocab": "V", "possible": "possible laws"})
    return plain("joint_knowledge", renamed, caption, specs=specs)


def left(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per shape, world with i.i.d. draws and verifier of DRAWN: `left`, % of the optimum."""
    keys = ["shape", "vocab", "laws", "seed"]
    rows = frame[(frame.possible == 1) & (frame.draws == "iid")]
    optimum = rows[rows.verifier == OPTIMUM].set_index(keys).accepted.rename("optimum")
    rows = rows[rows.verifier.isin(DRAWN)].join(optimum, on=keys)
    return rows.assign(left=(100 * (1 - rows.accepted / rows.optimum)).clip(lower=0).round(4))


def comparison(frame: pd.DataFrame) -> str:
    """A note: what the figure's last verifier leaves beside the one before it, over all worlds."""
    second, best = DRAWN[-2:]
    worlds = left(frame).pivot(index=["shape", "laws", "seed"], columns="verifier")
    means = worlds.left.mean()
    even = worlds.left[worlds.index.get_level_values("shape") != UNEVEN].mean()
    less = 1 - worlds.accepted[best] / worlds.accepted[second]
    return (
        f"Over all {len(worlds)} worlds with i.i.d. draws `{second}` leaves {means[second]:.1f} % "
        f"of the joint optimum in the mean and `{best}` {means[best]:.1f} %; without the shape "
        f"{UNEVEN}, {even[second]:.1f} % and {even[best]:.1f} %. In {(less > ROUNDING).sum()} of "
        f"these worlds `{best}` accepts less than `{second}`, by at most {100 * less.max():.1f} %."
    )


def draw(frame: pd.DataFrame) -> Figure:
    """The figure: each verifier's mean over each shape's worlds, with the least and the most."""
    rows = left(frame)
    spread = rows.groupby(["verifier", "shape"], sort=False).left.agg(
        value="mean", lower="min", upper="max"
    )
    shapes = list(dict.fromkeys(rows["shape"]))
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    axes = figure.subplots()
    looks = figures.looks(DRAWN)
    for place, name in enumerate(DRAWN):
        x = np.arange(len(shapes)) + 0.15 * (place - (len(DRAWN) - 1) / 2)
        figures.line(
            axes, x, spread.loc[name].reindex(shapes), replace(looks[name], line="none"), name
        )
    figures.finish(axes)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(-0.06, TICKS[-1])
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.set_xticks(range(len(shapes)), shapes)
    axes.set_xlabel("shape of the tree: children a level", fontsize=figures.SIZE + 0.5)
    for place in range(1, len(shapes)):
        axes.axvline(place - 0.5, color="0.9", linewidth=0.6)
    worlds = rows.groupby(["verifier", "shape"]).size().max()
    axes.set_ylabel(
        f"% of the joint optimum that is left, {worlds} worlds", fontsize=figures.SIZE + 0.5
    )
    figure.legend(
        loc="outside lower center", ncols=len(DRAWN), frameon=False, fontsize=figures.SIZE
    )
    means, (second, best) = rows.groupby("verifier").left.mean(), DRAWN[-2:]
    message = (
        f"Of the most that an exact verifier can accept, {best} leaves {means[best]:.1f} % "
        "in the mean,"
    )
    figure.suptitle(f"{message} {second} {means[second]:.1f} %", fontsize=figures.SIZE + 2)
    return figure


def notes(frame: pd.DataFrame) -> list[str]:
    """The paragraphs below the tables: the figure, what it shows in words, and what was solved."""
    about = (
        f"`python docs/studies/joint_optimum.py`: means over {frame.seed.nunique()} random worlds "
        "of every kind. Shapes are children a level. Laws are Dirichlet, flat with parameter 1 and "
        "sharp with 1/3; q is a law of its own where far, and half p's where near. Possible laws: "
        "after each sequence below the root, p and q are one of so many pairs, all combinations "
        "are worlds, and a verifier sees which pair it is at drafted places only. What the optimum "
        "is: docs/optimal-verification.md. The figure is of i.i.d. draws: of every shape the mean "
        "over all its worlds, and the range from the least to the most."
    )
    picture = "![what verifiers leave of the joint optimum](joint.png)"
    return [picture, comparison(frame), about]
