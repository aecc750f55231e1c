"""Figure 2: where rejections leave the target's law, rule by rule, after one typical prefix.

Usage: python -m analysis.figure2 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from analysis import figures, labels
from analysis.artefact import Artefact, command, footer, key_cells, key_columns, split_keys
from analysis.figures import SIZE
from analysis.load import SETTING, Plan, Results, load
from analysis.published import Compared
from analysis.stats import BRACKETS, ratio
from analysis.table import ABSENT, Cell, Column, Gap, Key, Notes, Number, Picture, Table, Text, plain

QUANTITIES = {
    "rejected": "All rejected",
    "overlap": "Overlap with q",
    "overdraft": "On tokens with q > p",
    "outside": "Outside of q's support",
}
"""Fields with a value for every number of rejections, and their headers."""
CHOOSING = ("rejected", "overlap", "outside")
"""The quantities by which the drawn context is typical."""
LAWS = ("target", "draft", "residual", "emitted", "emitted_error")
FIELDS = (
    *("num_prefixes", "num_tuples", "context", "tokens", "texts", *LAWS),
    *(*QUANTITIES, "excess"),
)
DEFINITIONS = (
    "Rejections: k siblings were drafted and none was accepted. The residual is the law of the token that is "
    "emitted then; with k = 0 it is p. Where siblings are tested one after another, it is the law against "
    "which the next one is tested. ResiSpec's depends on the rejected tokens, and is averaged over {tuples} "
    "drafted tuples, each with the probability that all of it is rejected. The optimal rule has one proxy m "
    "for k siblings, fixed before they are drawn: its residual is norm(max(p - m, 0)).",
    "All rejected: how often a draft of k siblings comes to that. Overlap with q: sum of min(residual, q), "
    "averaged over rejected tokens; where siblings are tested one after another, the chance that the next "
    "one is accepted. On tokens with q > p: the residual's mass where the draft gives more than the target. "
    "Accepted siblings already emit all that p gives to these tokens, so the standard and the optimal rule "
    "leave nothing there. Outside of q's support: the residual's mass outside of the smallest set of tokens "
    "that holds 95 % of q. Excess: what is emitted in the end on tokens with q > p, minus p's share of them; "
    "0 for an exact rule, and at most the total variation between the emitted law and p. Means over "
    "prefixes.",
    "The context of the picture is chosen by a rule: of all prefixes, the one whose numbers (all rejected, "
    "overlap with q, outside of q's support, after every number of rejections, of the {reference} rule) are "
    "nearest to their medians over prefixes, in Euclidean distance; of equals the first. It ends with "
    "`` {quote} ``. The CSV has the medians and the context's numbers; all that is drawn is in "
    "figure2_context.csv.",
    "The paper's Figure 2 is a drawing without numbers, so there is nothing to compare with.",
)
PICTURE = (
    "Bars of probability by token, rule by rule, after 1, 2 and 3 rejections. What the standard and the "
    "optimal rule leave lies on tokens that the draft gives too little; what ResiSpec leaves lies mostly on "
    "tokens that the draft gives too much, and these come out too often in the end"
)
"""For who cannot see it."""


OVERDRAFTED = "q > p"
"""The side of the tokens to which the draft gives more than the target."""
OVER, UNDER = figures.VERMILION, figures.BLUE
SAID = {
    "standard": "what is left moves to where the draft gives too little: later candidates help little, "
    "but nothing is biased",
    "resispec": "what is left stays with the draft, on tokens that had their share already: these come out "
    "too often",
    "optimal": "what is left moves away, too, but is needed less often: a fixed proxy weighs all candidates "
    "at once",
}
"""The shape of a rule's panels for any p and q, as long as several tokens have q > p."""
LEAST_BIAS = 0.01
"""The axis of biases reaches at least this far, so that noise does not fill it."""
QUOTED = 70
"""Characters of the context in the title."""


@dataclass(frozen=True)
class Place:
    """A prefix of a cell. row: of its prompt, among the cell's rows. prefix: among those of the prompt."""

    row: int
    prefix: int


def typical(rows: pd.DataFrame, fields: Sequence[str]) -> Place:
    """The prefix whose numbers are nearest to their medians over all prefixes, in Euclidean distance.

    rows: of one cell; every field holds one list of numbers a prefix. Of equals the first is taken.
    """
    places = [Place(row, prefix) for row, count in enumerate(rows.num_prefixes) for prefix in range(count)]
    numbers = np.array([
        [value for field in fields for value in rows[field].iloc[place.row][place.prefix]] for place in places
    ])  # fmt: skip
    distances = np.linalg.norm(numbers - np.median(numbers, axis=0), axis=1)
    return places[int(distances.argmin())]


@dataclass(frozen=True)
class Context:
    """The drawn contents: the cells of one setting, after one prefix.

    setting: the labels that these cells share. reference: the verifier by whose numbers the prefix was
    chosen. place: of the prefix. quote: how it ends.
    """

    setting: dict[str, Any]
    reference: str
    place: Place
    quote: str

    def place_in(self, cell: Mapping[str, Any]) -> Place | None:
        """The place of the prefix in a cell; None where the cell is not drawn."""
        return self.place if all(cell[key] == value for key, value in self.setting.items()) else None


def make(plan: Plan) -> Artefact:
    """The picture, its numbers, and the same quantities over all prefixes; every cell has a row."""
    results = load(plan, FIELDS)
    varying, fixed = split_keys(results.cells, (*SETTING, *results.more))
    context = choose(results)
    cells = [
        (cell, list(_records(cell, results, context.place_in(cell) if context else None)))
        for cell in results.cells.to_dict("records")
    ]
    columns = (
        *key_columns(varying),
        Column("verifier", "Method", "key"),
        Column("rejections", "Rejections", "key"),
        *(Column(key, header, "number") for key, header in (QUANTITIES | {"excess": "Excess"}).items()),
    )
    table = Table(
        "figure2",
        columns,
        tuple(line for cell, records in cells for line in _lines(cell, records, varying)),
        f"Figure 2 of the paper, {plan.profile} profile: what rejections leave of the target.{fixed}",
        pd.DataFrame([record for _, records in cells for record in records]),
        _notes(results, plan, context),
    )
    compared = Compared("overlap", "overlaps", ("rejections",))
    if context is None:
        return Artefact((table,), suffixes=("csv", "md"), compared=compared)
    drawn = [(cell, records) for cell, records in cells if context.place_in(cell)]
    laws = pd.DataFrame([bar for cell, _ in drawn for bar in _bars(cell, results, context.place)])
    specs = dict.fromkeys(laws.select_dtypes("float"), ".4f")
    notes = (f"Drawn after `` {context.quote} ``.",)
    bars = plain("figure2_context", laws, "Figure 2: what is drawn.", notes, specs)
    numbers = pd.DataFrame([record for _, records in drawn for record in records])
    pictures = {"figure2": draw(laws, numbers, context.quote)}
    return Artefact((table, bars), pictures, ("csv", "md"), compared)


def choose(results: Results) -> Context | None:
    """The first setting with a finished cell, and its typical prefix; None where no cell is done.

    The numbers that decide are those of the standard rule, or of the first cell that is done without it.
    """
    done = results.cells[results.cells.status == "done"]
    if done.empty:
        return None
    standard = done[done.verifier == "standard"]
    cell = (done if standard.empty else standard).iloc[0]
    rows = results.rows[cell.cell_id]
    place = typical(rows, CHOOSING)
    quote = " ".join(rows.context.iloc[place.row][place.prefix].split())
    return Context({key: cell[key] for key in (*SETTING, *results.more)}, cell.verifier, place, quote)


def _records(cell: Mapping[str, Any], results: Results, place: Place | None) -> Iterator[dict[str, Any]]:
    """Rows of the CSV; `median` is over prefixes, `context` is the number of the prefix that is drawn."""
    shared, rows = results.about(cell), results.rows.get(cell["cell_id"])
    if rows is None:
        empty = ("rejections", "value", "lower", "upper", "median", "context")
        yield shared | {"quantity": ""} | dict.fromkeys(empty, np.nan)
        return
    rejections = range(len(rows.rejected.iloc[0][0]))
    # of every quantity and number of rejections, the values of the prefixes, for every prompt
    values = {
        (name, count): [[prefix[count] for prefix in prompt] for prompt in rows[name]]
        for name in QUANTITIES
        for count in rejections
    }
    values["excess", rejections[-1]] = rows.excess.tolist()
    for (quantity, count), prompts in values.items():
        mean = ratio([sum(prompt) for prompt in prompts], [len(prompt) for prompt in prompts])
        record = shared | {"quantity": quantity, "rejections": count} | vars(mean)
        record["median"] = float(np.median(sum(prompts, [])))
        yield record | {"context": np.nan if place is None else prompts[place.row][place.prefix]}


def _bars(cell: Mapping[str, Any], results: Results, place: Place) -> Iterator[dict[str, Any]]:
    """The drawn parts of a cell, bar by bar; nothing of one that is not done. White space is made visible."""
    if cell["cell_id"] not in results.rows:
        return
    prompt = results.rows[cell["cell_id"]].iloc[place.row]
    row = {name: prompt[name][place.prefix] for name in ("tokens", "texts", *LAWS)}
    for entry, (token, text) in enumerate(zip(row["tokens"], row["texts"], strict=True)):
        yield {
            "verifier": cell["verifier"],
            "side": OVERDRAFTED if entry < len(row["tokens"]) // 2 else "q <= p",
            "token": token,
            "text": text.replace("\n", "⏎").replace(" ", "␣") if token >= 0 else text,
            **{name: row[name][entry] for name in ("target", "draft")},
            **{f"residual_{k}": law[entry] for k, law in enumerate(row["residual"]) if k},
            **{name: row[name][entry] for name in ("emitted", "emitted_error")},
        }


def _lines(
    cell: Mapping[str, Any], records: Sequence[Mapping[str, Any]], varying: Sequence[str]
) -> Iterator[tuple[Cell, ...]]:
    """The lines of a cell, one for each number of rejections."""
    verifier = cell["verifier"]
    keys = (*key_cells(cell, varying), Key(verifier, labels.name("verifier", verifier)))
    if cell["status"] != "done":
        yield (*keys, Key(None, ABSENT), Gap(cell["status"], cell["reason"]), *[Text()] * len(QUANTITIES))
        return
    means = {(row["quantity"], row["rejections"]): Number.of(row, ".3f") for row in records}
    for count in sorted({rejections for _, rejections in means}):
        numbers = (means.get((quantity, count), Text()) for quantity in (*QUANTITIES, "excess"))
        yield (*keys, Key(count, str(count)), *numbers)


def _notes(results: Results, plan: Plan, context: Context | None) -> Notes:
    """The picture and what its numbers mean."""
    if context is None:
        return footer(results, plan, (), [BRACKETS])
    tuples = sorted({f"{count:,}" for rows in results.rows.values() for count in rows.num_tuples})
    reference = labels.name("verifier", context.reference)
    words = {"tuples": ", ".join(tuples), "reference": reference, "quote": context.quote}
    about = [note.format(**words) for note in DEFINITIONS]
    return footer(results, plan, about, [BRACKETS], Picture(PICTURE, "figure2.png"))


def draw(laws: pd.DataFrame, numbers: pd.DataFrame, quote: str) -> Figure:
    """The figure.

    laws: figure2_context.csv. numbers: the rows of figure2.csv of the same setting. quote: how the context
    ends.
    """
    verifiers = list(dict.fromkeys(numbers.verifier))
    heights = [2.9, *[1.95] * len(verifiers)]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    top, *strips = figure.subfigures(len(heights), 1, height_ratios=heights)
    known = numbers.set_index(["verifier", "quantity", "rejections"]).context
    first = laws.verifier.iloc[0]
    _models(top, laws[laws.verifier == first], quote, known[first, "overlap", 0])
    highest = 1.35 * laws[["draft", *_residuals(laws)]].max().max()
    furthest = 1.6 * max((laws.emitted - laws.target).abs().max(), LEAST_BIAS)
    for strip, verifier in zip(strips, verifiers, strict=True):
        title = ": ".join([labels.name("verifier", verifier), *filter(None, [SAID.get(verifier)])])
        strip.suptitle(title, x=0.005, ha="left", fontsize=SIZE + 1.5, fontweight="bold")
        own = laws[laws.verifier == verifier]
        if own.empty:
            gap = str(Gap(*numbers[numbers.verifier == verifier].iloc[0][["status", "reason"]]))
            strip.text(0.5, 0.5, gap, ha="center", fontsize=SIZE)
        else:
            _strip(strip, own, known[verifier], (highest, furthest))
    return figure


def _residuals(laws: pd.DataFrame) -> list[str]:
    return [name for name in laws if name.startswith("residual_")]


def _models(part: SubFigure, laws: pd.DataFrame, quote: str, overlap: float) -> None:
    """Target and draft, with the names of the bars, which are the same in all panels."""
    axes = part.subplots()
    _sides(axes, laws)
    axes.bar(range(len(laws)), laws.target, color="0.65", label="target p: what has to come out")
    _outline(axes, laws, "draft q: where candidates come from")
    axes.set_ylim(0, 1.35 * laws[["target", "draft"]].max().max())
    axes.set_ylabel("probability", fontsize=SIZE)
    told = {"transform": axes.get_xaxis_transform(), "va": "top", "fontsize": SIZE + 1, "fontweight": "bold"}
    axes.text(-0.4, 0.97, "the draft gives these too much (q > p)", color=OVER, **told)
    axes.text(_middle(laws) + 0.2, 0.97, "the draft gives these too little (q ≤ p)", color=UNDER, **told)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.9), frameon=False, fontsize=SIZE)
    end = quote if len(quote) <= QUOTED else f"… {quote[-QUOTED:].lstrip()}"
    title = axes.set_title(f"The next token after “{end}”", loc="left", fontsize=SIZE + 1.5)
    axes.set_title(f"overlap of target and draft: {_percent(overlap)}", loc="right", fontsize=SIZE)
    figures.finish(axes)
    axes.set_xticks(range(len(laws)), laws.text, rotation=25, ha="right", rotation_mode="anchor")
    for text in (title, *axes.get_xticklabels()):
        text.set_parse_math(False)  # a token may be a dollar sign


def _strip(part: SubFigure, laws: pd.DataFrame, known: pd.Series, limits: tuple[float, float]) -> None:
    """One rule: what is left after every rejection, and the bias.

    known: numbers by quantity and rejections. limits: of the vertical axes of both.
    """
    names = _residuals(laws)
    *panels, last = part.subplots(1, len(names) + 1)
    for count, (axes, name) in enumerate(zip(panels, names, strict=True), start=1):
        over = known["overdraft", count]
        _sums(axes, laws, laws[name], (f"{_percent(over)} here", f"{_percent(1 - over)} here"))
        _outline(axes, laws)
        axes.set_ylim(0, limits[0])
        rejections = f"{count} rejection{'s' * (count > 1)}"
        axes.set_title(f"after {rejections} ({_rare(known['rejected', count])} of drafts)", fontsize=SIZE)
        axes.set_xlabel(f"overlap with the draft: {_percent(known['overlap', count])}", fontsize=SIZE)
        axes.tick_params(labelleft=count == 1)
    excess = _percent(known["excess"].iloc[0])
    _sums(last, laws, laws.emitted - laws.target, (f"{excess} too much", f"{excess} too little"))
    last.axhline(0, color="0.2", linewidth=0.6)
    last.set_ylim(-limits[1], limits[1])
    last.set_title("what comes out in the end, minus p", fontsize=SIZE)


def _sums(axes: Axes, laws: pd.DataFrame, values: pd.Series, totals: tuple[str, str]) -> None:
    """Bars in the colours of their sides. totals: what is written above each side."""
    _sides(axes, laws)
    colours = [OVER if side == OVERDRAFTED else UNDER for side in laws.side]
    axes.bar(range(len(laws)), values, color=colours)
    ends = (-0.5, _middle(laws), len(laws) - 0.5)
    style = {"transform": axes.get_xaxis_transform(), "va": "top", "fontweight": "bold", "fontsize": SIZE + 1}
    for left, right, text, colour in zip(ends, ends[1:], totals, (OVER, UNDER), strict=False):
        axes.text((left + right) / 2, 0.97, text, color=colour, ha="center", **style)
    figures.finish(axes)
    axes.set_xticks([])


def _middle(laws: pd.DataFrame) -> float:
    """Where the side with q > p ends."""
    return float((laws.side == OVERDRAFTED).sum()) - 0.5


def _sides(axes: Axes, laws: pd.DataFrame) -> None:
    ends = (-0.6, _middle(laws), len(laws) - 0.4)
    axes.axvspan(*ends[:2], color=OVER, alpha=0.07, linewidth=0)
    axes.axvspan(*ends[1:], color=UNDER, alpha=0.07, linewidth=0)
    axes.set_xlim(ends[0], ends[-1])


def _outline(axes: Axes, laws: pd.DataFrame, label: str = "") -> None:
    """The draft's law, over the bars."""
    edges = [place - 0.5 for place in range(len(laws) + 1)]
    axes.stairs(laws.draft, edges, color="black", linewidth=0.9, label=label or None)


def _percent(share: float) -> str:
    return f"{labels.number(100 * share, '.0f')} %"


def _rare(share: float) -> str:
    """A share that is not 0 is not printed as 0."""
    return _percent(share) if share >= 0.005 else "< 1 %"


main = command("figure2", make)


if __name__ == "__main__":
    sys.exit(main())
