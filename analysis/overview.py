"""Overview: the first page's table and picture of the paper's rules and the best exact method."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from analysis import audits, figures, labels, metrics, ranges
from analysis.artefact import Artefact, footer, run, texts
from analysis.audits import METHOD
from analysis.costs import (
    DRAFT_FORWARDS,
    GAIN_OVER_BEST,
    GAIN_OVER_RESISPEC,
    measure_with_costs,
    with_values,
)
from analysis.figures import SIZE
from analysis.load import Plan, load
from analysis.metric_table import by_cell, definitions
from analysis.table import Paper

TEXTS = texts("overview")
LENGTH, SPEED = metrics.ACCEPTED_LENGTH, metrics.SPEEDUP_VS_AUTOREGRESSIVE
COLUMNS = (
    LENGTH,
    metrics.GAIN,
    GAIN_OVER_BEST,
    GAIN_OVER_RESISPEC,
    metrics.TOKENS_PER_S,
    SPEED,
)
PAPERS = (("specinfer", "d5b3", "standard"), ("specinfer", "d5b3", "resispec"))


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells, its summary and the picture."""
    results = load(plan, metrics.FIELDS)
    results.check_one_setting()
    frame = measure_with_costs(results, plan)
    columns = with_values(frame, COLUMNS)
    notes = footer(results, plan, TEXTS["about"], definitions(columns, results), TEXTS["picture"])
    table = by_cell("overview", results, frame, TEXTS["caption"], notes, columns)
    summary = ranges.by_method(
        "overview_summary",
        frame[frame.decoder != "autoregressive"],
        {LENGTH: "Tokens a step", SPEED: "Speed"},
        (DRAFT_FORWARDS,),
        TEXTS,
    )
    return Artefact((table, summary), {"overview": partial(draw, frame)})


def shown(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """The methods of the picture: PAPERS, and the best one without a bias seen, where measured."""
    lengths = frame[frame.quantity == LENGTH.name]
    best = [tuple(method) for method in audits.best_unbiased(lengths)[METHOD].to_numpy()[:1]]
    measured = set(lengths[METHOD].itertuples(index=False, name=None))
    return [*dict.fromkeys(method for method in (*PAPERS, *best) if method in measured)]


def draw(frame: pd.DataFrame, width: float | None = None) -> Figure:
    """The picture at the highest temperature: a panel of tokens a step and one of speed.

    A bar is the mean of a method over data sets, with the least and the most of them.
    """
    frame = frame[frame.temperature == frame.temperature.max()]
    methods = shown(frame)
    rows_of = dict(iter(frame.groupby(METHOD, sort=False)))
    of_methods = [rows_of[method] for method in methods]
    counts = [ranges.num_measured(rows) for rows in of_methods]
    verdicts = [_worst(set(rows.verdict[rows.quantity == LENGTH.name])) for rows in of_methods]
    columns, size = 2, (7.2, 1.2 + 0.5 * max(1, len(methods)))
    if width:
        columns = 2 if width > 5.5 else 1
        size = (width, (0.8 if columns > 1 else 1.6) + 1.3 * max(1, len(methods)) / columns)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(2 // columns, columns, sharey=True).ravel()
    heads = ("tokens a step", "tokens a second, no speculation = 1")
    for axes, metric, head in zip(panels, (LENGTH, SPEED), heads, strict=True):
        rows = frame[(frame.quantity == metric.name) & frame.value.notna()]
        found = rows.groupby(METHOD, sort=False).value.agg(["mean", "min", "max"])
        found = found.reindex(methods).set_axis(["value", "lower", "upper"], axis=1)
        texts = [str(Paper(*between)) for between in found[["lower", "upper"]].to_numpy()]
        figures.bars(axes, found, texts, verdicts)
        axes.set_xlabel(head, fontsize=SIZE + 0.5)
    names = [
        f"{labels.method(decoder, verifier)}{', biased' if audits.is_biased(verdict) else ''}\n"
        f"on {labels.name('tree', tree)}{ranges.of_data_sets(count, counts)}"
        for (decoder, tree, verifier), verdict, count in zip(methods, verdicts, counts, strict=True)
    ]
    if width:
        names = [figures.wrapped(name, 0.45 * width) for name in names]
    panels[0].set_yticks(range(len(methods)), names)
    panels[1].axvline(1, color="black", linewidth=0.8)
    figure.suptitle(_setting(frame, max(counts, default=0)), fontsize=SIZE + 0.5)
    return figure


def _worst(verdicts: set[str]) -> str:
    """The verdict about a method: biased if any row is, no bias seen if none is undecided."""
    biased = sorted(filter(audits.is_biased, verdicts))
    if biased:
        return biased[0]
    return verdicts.pop() if len(verdicts) == 1 else ""


def _setting(frame: pd.DataFrame, num_datasets: int) -> str:
    """The picture's pair, temperature and range in a line.

    num_datasets: the most that a method was measured on.
    """
    if frame.empty:
        return ""
    about = frame.iloc[0]
    where = labels.setting({key: about[key] for key in ("pair", "temperature")})
    return f"{where}; hatched: biased; lines: range over {num_datasets} data sets"


if __name__ == "__main__":
    raise SystemExit(run("overview", make))
