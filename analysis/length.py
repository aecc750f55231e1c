"""Length: accepted length by the tokens that are already written, as a table and a figure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures, labels, long, metrics
from analysis.artefact import Artefact, footer, run, texts
from analysis.figures import SIZE
from analysis.labels import Label
from analysis.load import Plan, Results, load
from analysis.metrics import ACCEPTED_LENGTH, GAIN
from analysis.published import Compared
from analysis.stats import ABSENT, BRACKETS, Interval, few_prompts, paired_gain, ratio
from analysis.table import Column, Table
from resispec.errors import InvalidInput

TEXTS = texts("length")
LONG = "long"
"""Parts whose names begin so have cells of more tokens than the profile's usual ones."""
EDGES = (0, 16, 32, 64, 128, 256, 512)
"""Limits of the intervals of written tokens; the last interval has no end."""
OWN, RECYCLED = "specinfer", "recycled"
"""Decoders whose draft gives its own laws, and mixtures with the target's earlier ones."""
GROWTH = "last_over_first"
MOST, BEGIN, END = "new_tokens", "from_tokens", "to_tokens"
FIELDS = (*metrics.FIELDS, "step_emitted", "num_returned")
Steps = dict[int, tuple[np.ndarray, np.ndarray]]
"""Beginning of an interval -> tokens and steps of every prompt in it, (prompts,) each."""


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells, those of the longest texts first, and the figure of these."""
    decoded = plan.only(lambda cell: not cell.is_audit)
    longest = load(decoded.only(lambda cell: cell.part.startswith(LONG)), FIELDS)
    usual = load(decoded.only(lambda cell: not cell.part.startswith(LONG)), FIELDS)
    groups = [results for results in (longest, usual) if len(results.cells)]
    for results in groups:
        results.check_one_setting()
    frames = [*map(_frame, groups)]
    # a group without a done cell has no length, and is told apart by its reasons
    limits = [most for frame in frames if (most := frame[MOST].iloc[0])]
    if len(set(limits)) < len(limits):
        raise InvalidInput(
            f"cells of the parts {LONG}... and of the others have up to {limits[0]} new tokens, so "
            "their rows cannot be told apart; allowed: a sweep of one of them, see part="
        )
    frame = pd.concat(frames, ignore_index=True)
    keys = groups[0].keys
    varying, fixed = long.split_keys(frame, (*groups[0].setting, "tree", "method"))
    by = [MOST, "cell_id", *keys]
    lines = long.tabulate(frame, by, _columns(frame, varying), ("quantity", BEGIN))
    cells = pd.concat([results.cells for results in groups], ignore_index=True)
    rows = {cell_id: one for results in groups for cell_id, one in results.rows.items()}
    about = [text.format(gains=_gains(frame)) for text in TEXTS["about"]]
    whole = replace(groups[0], cells=cells, rows=rows)
    by_interval = few_prompts(frame.num_prompts[frame.value.notna()])
    few = [] if few_prompts(map(len, rows.values())) else by_interval  # which `footer` adds
    meanings = [TEXTS["definitions"], BRACKETS, *few]
    notes = footer(whole, plan, about, meanings, TEXTS["picture"])
    table = Table("length", *lines, TEXTS["caption"] + fixed, frame, notes)
    compared = Compared(ACCEPTED_LENGTH.name, "accepted lengths", (MOST, BEGIN))
    drawn = frame[frame[MOST] == frame[MOST].max()]
    return Artefact((table,), {"length": partial(draw, drawn)}, compared=compared)


def steps_of(rows: pd.DataFrame) -> Steps:
    """Tokens and steps of each prompt by the interval in which a step begins.

    rows: of a cell that decoded, with the tokens of its steps in `step_emitted`. Intervals in which
    no step begins are left out.
    """
    num_prompts = len(rows)
    emitted = np.zeros((len(EDGES), num_prompts))
    counts = np.zeros((len(EDGES), num_prompts))
    for prompt, sizes in enumerate(rows.step_emitted):
        begins = np.cumsum([0, *sizes[:-1]])
        places = np.searchsorted(EDGES, begins, side="right") - 1
        np.add.at(emitted[:, prompt], places, sizes)
        np.add.at(counts[:, prompt], places, 1)
    return {
        begin: (emitted[place], counts[place])
        for place, begin in enumerate(EDGES)
        if counts[place].any()
    }


def _both(*sums: tuple[np.ndarray, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens and steps of those prompts alone that have steps in all of these."""
    has_all = np.all([counts > 0 for _, counts in sums], axis=0)
    return [(tokens[has_all], counts[has_all]) for tokens, counts in sums]


def _over(own: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> Interval:
    """The accepted length over another one, on the prompts that have steps in both."""
    pair = _both(own, other)
    return paired_gain(*pair) if len(pair[0][0]) else ABSENT


def _frame(results: Results) -> pd.DataFrame:
    """The long frame of cells: accepted lengths, gains over the draft's own laws, and the growth.

    Lengths and gains are by interval; the growth is from the first interval to the last.
    """
    steps = {cell_id: steps_of(rows) for cell_id, rows in results.rows.items()}
    most = max((int(rows.num_returned.max()) for rows in results.rows.values()), default=0)
    cell_ids = {results.place(cell): cell["cell_id"] for cell in results.cells.to_dict("records")}
    records: list[dict[str, Any]] = []
    for about, rows in results.each():
        about = {MOST: most} | about
        if rows is None:
            records.append(about | {"quantity": ACCEPTED_LENGTH.name, BEGIN: EDGES[0]})
            continue
        own = steps[about["cell_id"]]
        drafts = steps.get(cell_ids.get(results.place(about | {"decoder": OWN}), ""), {})
        for begin, (tokens, counts) in own.items():
            later = [edge for edge in EDGES if edge > begin]
            reached = counts > 0
            place = {BEGIN: begin, END: min([*later, most]), "num_prompts": int(reached.sum())}
            numbers = {ACCEPTED_LENGTH.name: ratio(tokens[reached], counts[reached])}
            if Label.of(about["decoder"]).option == RECYCLED and begin in drafts:
                numbers[GAIN.name] = _over(own[begin], drafts[begin])
            records += long.records(about | place, numbers)
        ends = own[max(own)], own[min(own)]
        growth = _over(*ends) if len(own) > 1 else ABSENT
        count = len(_both(*ends)[0][0])
        records += long.records(
            about | {BEGIN: "", END: "", "num_prompts": count}, {GROWTH: growth}
        )
    names = [MOST, "cell_id", *results.keys, BEGIN, END, "status", "reason", "num_prompts"]
    frame = pd.DataFrame(records, columns=[*names, "quantity", "value", "lower", "upper"])
    return frame.astype(dict.fromkeys(("value", "lower", "upper"), float)).fillna({END: ""})


def _columns(frame: pd.DataFrame, varying: Sequence[str]) -> list[Column]:
    """The columns of the table: names of rows, and an accepted length for each interval."""
    most = long.named(MOST, "New tokens", lambda row: f"up to {row[MOST]}")
    begins = sorted({begin for begin in frame[BEGIN] if begin != ""})
    ends = [*begins[1:], math.inf]
    spec = ACCEPTED_LENGTH.spec
    headers = [
        f"{begin}–{end - 1}" if end < math.inf else f"from {begin}"
        for begin, end in zip(begins, ends, strict=True)
    ]
    by_interval = [
        long.number(header, spec, ACCEPTED_LENGTH.name, begin)
        for header, begin in zip(headers, begins, strict=True)
    ]
    return [most, *long.names(varying), *by_interval, long.number("Last / first", spec, GROWTH, "")]


def _gains(frame: pd.DataFrame) -> str:
    """The gains of recycled laws by interval in words, over the cells of the longest texts."""
    gains = frame[(frame.quantity == GAIN.name) & (frame[MOST] == frame[MOST].max())]
    words = []
    for (dataset, temperature, decoder, tree, verifier), rows in gains.groupby(
        ["dataset", "temperature", "decoder", "tree", "verifier"], sort=False
    ):
        numbers = ", ".join(f"{value:.2f}" for value in rows.value)
        keys = {} if decoder == RECYCLED else {"decoder": decoder}
        if gains.dataset.nunique() > 1:
            keys["dataset"] = dataset
        where = labels.setting({**keys, "tree": tree, "temperature": temperature})
        words.append(f"{labels.name('verifier', verifier)} on {where}: {numbers}")
    return "; ".join(words) or labels.ABSENT


def draw(frame: pd.DataFrame, width: float | None = None) -> Figure:
    """The figure: a panel a temperature, accepted length against written tokens.

    Lines of recycled laws are dashed. frame: rows of the table's frame with as many new tokens.
    """
    frame = frame[(frame.quantity == ACCEPTED_LENGTH.name) & frame.value.notna()]
    frame = frame[frame.dataset == (frame.dataset.iloc[0] if len(frame) else "")]
    panels = list(frame.groupby("temperature", sort=False))
    count = max(1, len(panels))
    columns, size, room = count, (1.4 + 4.3 * count, 3.9), None
    if width:
        columns = count if width > 4 * count else 1
        size, room = (width, 0.6 + 3.4 * (count // columns)), 0.4 * width / columns
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(count // columns, columns, sharey=True, squeeze=False)
    looks = figures.looks(frame.verifier)
    for axes, (temperature, rows) in zip(grid.flat, panels, strict=False):
        _panel(axes, rows, looks, room)
        where = {"dataset": rows.dataset.iloc[0], "temperature": temperature}
        axes.set_title(labels.setting(where), fontsize=SIZE + 0.5)
        axes.set_xlabel("tokens already written", fontsize=SIZE + 0.5)
    for axes in grid[:, 0]:
        axes.set_ylabel("accepted length, tokens a step", fontsize=SIZE + 0.5)
    figure.suptitle(
        "Recycled laws (dashed) beside the draft's own; bands: 95 % over prompts",
        fontsize=SIZE + 2,
    )
    return figure


def _panel(
    axes: Axes, frame: pd.DataFrame, looks: Mapping[str, figures.Look], room: float | None
) -> None:
    """Draw a line with its band for each method; intervals lie at equal distances."""
    begins = sorted(set(frame[BEGIN]))
    ends = []
    for (decoder, tree, verifier), rows in frame.groupby(
        ["decoder", "tree", "verifier"], sort=False
    ):
        rows = rows.sort_values(BEGIN)
        x = [begins.index(begin) for begin in rows[BEGIN]]
        is_recycled = Label.of(decoder).option == RECYCLED
        look = replace(looks[verifier], line="--" if is_recycled else "-")
        axes.fill_between(x, rows.lower, rows.upper, color=look.colour, alpha=0.15, linewidth=0)
        figures.line(axes, x, rows.assign(lower=math.nan, upper=math.nan), look)
        name = labels.name("verifier", verifier) + f", {labels.name('tree', tree)}"
        if decoder == RECYCLED:
            name += ", recycled"
        elif decoder != OWN:
            name += f", {labels.name('decoder', decoder)}"
        name = figures.wrapped(name, room or 1.9)
        ends.append((x[-1], float(rows.value.iloc[-1]), name, look.colour))
    last = frame.groupby(BEGIN)[END].max()
    axes.set_xticks(range(len(begins)), [f"{begin}–{last[begin]}" for begin in begins])
    axes.set_ylim(1, 1.05 * frame.upper.fillna(frame.value).max())
    figures.label_ends(axes, ends, 15 if room else 19)
    figures.finish(axes)


if __name__ == "__main__":
    raise SystemExit(run("length", make))
