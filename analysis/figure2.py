"""Figure 2: where rejections leave the target's law, rule by rule, after one typical prefix."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from analysis import figures, labels, long
from analysis.artefact import Artefact, footer, run, texts
from analysis.figures import SIZE
from analysis.load import Plan, Results, load
from analysis.published import Compared
from analysis.stats import BRACKETS, ratio
from analysis.table import Gap, Table, plain
from resispec.errors import InvalidInput

TEXTS = texts("figure2")
QUANTITIES = {
    "rejected": "All rejected",
    "overlap": "Overlap with q",
    "overdraft": "On tokens with q > p",
    "outside": "Outside of q's support",
}
"""Fields with a value for each number of rejections -> their headers."""
LAWS = ("target", "draft", "residual", "emitted", "emitted_error")
FIELDS = ("num_prefixes", "num_tuples", "context", "tokens", "texts", *LAWS, *QUANTITIES, "excess")
OVERDRAFTED = "q > p"
"""Name of the side with the tokens to which the draft gives more than the target."""
OVER, UNDER = figures.VERMILION, figures.BLUE
LEAST_WIDTH = 5.0
"""The smallest width with room for the names of tokens, in inches."""
QUOTED = 70
"""The largest number of characters of the context in the title."""
PROSE = 0.9
"""The least share of letters and white space in words."""
WHITE_SPACE = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
"""Visible signs of white space; of any other kind it is that of a space."""
LONGEST_RUN = 4
"""The longest run of equal white space that is shown sign by sign."""


@dataclass(frozen=True)
class Context:
    """The subject of the picture: the cells of one setting, after one prefix.

    cells: the ids of the cells. reference: the verifier whose numbers chose the prefix. row: the
    place of the prefix's prompt among a cell's rows. prefix: its place among the prompt's prefixes.
    quote: its end.
    """

    cells: frozenset[str]
    reference: str
    row: int
    prefix: int
    quote: str

    @property
    def code(self) -> str:
        """The quote as code in Markdown, between more backticks than it has itself."""
        fence = "`" * max(2, 1 + max(map(len, re.findall("`+", self.quote)), default=0))
        return f"{fence} {self.quote} {fence}"


def make(plan: Plan) -> Artefact:
    """The picture, its numbers, and the same quantities over all prefixes; every cell has a row."""
    results = load(plan, FIELDS)
    context = choose(results)
    cells = list(results.each())
    frame = pd.DataFrame([record for cell in cells for record in _records(*cell, context)])
    varying, fixed = long.split_keys(results.cells, results.setting)
    shown = long.names(varying, verifier="Method", rejections="Rejections")
    shown += [
        long.number(header, ".3f", key)
        for key, header in (QUANTITIES | {"excess": "Excess"}).items()
    ]
    lines = long.tabulate(frame, ["cell_id", *results.keys, "rejections"], shown)
    about, picture, rest, pictures = [], "", (), {}
    if context:
        tuples = sorted(
            {f"{count:,}" for rows in results.rows.values() for count in rows.num_tuples}
        )
        words = {
            "tuples": ", ".join(tuples),
            "reference": labels.name("verifier", context.reference),
        }
        about = [note.format(**words, quote=context.code) for note in TEXTS["about"]]
        picture = TEXTS["picture"]
        settings = results.cells[[*results.setting]].drop_duplicates()
        if len(settings) > 1:
            shown_first = frame[frame.cell_id.isin(context.cells)].iloc[0]
            names = [key for key in results.setting if settings[key].nunique() > 1]
            where = labels.setting({key: shown_first[key] for key in names})
            picture += f" ({where}, one of {len(settings)} settings)"
        laws = pd.DataFrame([bar for cell in cells for bar in _bars(*cell, context)])
        specs = dict.fromkeys(laws.select_dtypes("float"), ".4f")
        source = [f"Drawn after {context.code}."]
        rest = (plain("figure2_context", laws, "Figure 2: what is drawn.", source, specs),)
        drawn = frame[frame.cell_id.isin(context.cells)]
        pictures = {"figure2": partial(draw, laws, drawn, context.quote)}
    notes = footer(results, plan, about, [BRACKETS], picture)
    table = Table("figure2", *lines, TEXTS["caption"] + fixed, frame, notes)
    return Artefact(
        (table, *rest), pictures, ("csv", "md"), Compared("overlap", "overlaps", ("rejections",))
    )


def choose(results: Results) -> Context | None:
    """The setting to draw, and its typical prefix; None if no cell is done.

    The first finished cell of the standard rule chooses both, or without one the first finished
    cell.
    """
    done_cells = results.cells[results.cells.status == "done"]
    if done_cells.empty:
        return None
    standard = done_cells[done_cells.verifier == "standard"]
    cell = (done_cells if standard.empty else standard).iloc[0]
    rows = results.rows[cell.cell_id]
    row, prefix = typical(
        rows,
        ("rejected", "overlap", "outside"),
        lambda row, prefix: is_prose(rows.context.iloc[row][prefix]),
    )
    quote = quoted(rows.context.iloc[row][prefix])
    setting = [*results.setting]
    cells = results.cells.cell_id[(results.cells[setting] == cell[setting]).all(axis=1)]
    return Context(frozenset(cells), cell.verifier, row, prefix, quote)


def typical(
    rows: pd.DataFrame,
    fields: Sequence[str],
    is_wanted: Callable[[int, int], bool] = lambda _row, _prefix: True,
) -> tuple[int, int]:
    """Places of the prompt and the prefix whose numbers are nearest (Euclid) to the medians.

    The medians are those of all prefixes. Only wanted prefixes are taken, if there are any; among
    equals, the first.

    rows: those of one cell; each field has a list of numbers per prefix. is_wanted: takes places.
    """
    places = [
        (row, prefix) for row, count in enumerate(rows.num_prefixes) for prefix in range(count)
    ]
    numbers = np.hstack([np.concatenate(rows[field].tolist()) for field in fields])
    distances = np.linalg.norm(numbers - np.median(numbers, axis=0), axis=1)
    wanted = np.array([is_wanted(*place) for place in places])
    return places[int(np.where(wanted | ~wanted.any(), distances, np.inf).argmin())]


def is_prose(context: str) -> bool:
    """Whether a text reads as words: nearly all of it are letters and white space."""
    count = sum(character.isalpha() or character.isspace() for character in context)
    return count >= PROSE * len(context) > 0


def quoted(context: str) -> str:
    """The end of a text in one line; line breaks right before the next token are visible."""
    words = " ".join(context.split())
    last_break = context[len(context.rstrip()) :].count("\n")
    return f"{words} {visible(chr(10) * last_break)}" if last_break else words


def visible(text: str) -> str:
    """A token's text with its white space made visible, long runs of it by their length.

    A part of a character, such as a byte of several, is the replacement character.
    """

    def sign(match: re.Match[str]) -> str:
        kind = WHITE_SPACE.get(match[1], "␣")
        return f"{kind}×{len(match[0])}" if len(match[0]) > LONGEST_RUN else kind * len(match[0])

    return re.sub(r"(\s)\1*", sign, text)


def shortened(quote: str) -> str:
    """The end of a quote that has room in a title, from the beginning of a word."""
    if len(quote) <= QUOTED:
        return quote
    end = quote[-QUOTED:]
    is_whole = quote[-QUOTED - 1] == " "
    return f"… {end if is_whole else end.partition(' ')[2] or end}"


def _records(
    about: dict[str, Any], rows: pd.DataFrame | None, context: Context | None
) -> Iterator[dict[str, Any]]:
    """Rows of the CSV; `median` is over prefixes, `context` the value at the drawn prefix."""
    if rows is None:
        names = ("rejections", "value", "lower", "upper", "median", "context")
        yield about | {"quantity": ""} | dict.fromkeys(names, np.nan)
        return
    rejections = range(len(rows.rejected.iloc[0][0]))
    # quantity and number of rejections -> for each prompt, the values of its prefixes
    values = {
        (name, count): [[prefix[count] for prefix in prompt] for prompt in rows[name]]
        for name in QUANTITIES
        for count in rejections
    }
    values["excess", rejections[-1]] = rows.excess.tolist()
    for (quantity, count), prompts in values.items():
        mean = ratio([sum(prompt) for prompt in prompts], [len(prompt) for prompt in prompts])
        is_drawn = context is not None and about["cell_id"] in context.cells
        value = prompts[context.row][context.prefix] if is_drawn else np.nan
        numbers = {"quantity": quantity, "rejections": count, **vars(mean)}
        yield about | numbers | {"median": float(np.median(sum(prompts, []))), "context": value}


def _bars(
    about: Mapping[str, Any], rows: pd.DataFrame | None, context: Context
) -> Iterator[dict[str, Any]]:
    """The values of a drawn cell, bar by bar; nothing for other cells.

    White space is made visible.
    """
    if rows is None or about["cell_id"] not in context.cells:
        return
    prompt = rows.iloc[context.row]
    row = {name: prompt[name][context.prefix] for name in ("tokens", "texts", *LAWS)}
    for entry, (token, text) in enumerate(zip(row["tokens"], row["texts"], strict=True)):
        yield {
            "verifier": about["verifier"],
            "side": OVERDRAFTED if entry < len(row["tokens"]) // 2 else "q <= p",
            "token": token,
            "text": visible(text) if token >= 0 else text,
            **{name: row[name][entry] for name in ("target", "draft")},
            **{f"residual_{k}": law[entry] for k, law in enumerate(row["residual"]) if k},
            **{name: row[name][entry] for name in ("emitted", "emitted_error")},
        }


def draw(
    laws: pd.DataFrame, numbers: pd.DataFrame, quote: str, width: float | None = None
) -> Figure:
    """The figure.

    laws: the frame of figure2_context.csv. numbers: the rows of figure2.csv with the same setting.
    quote: the end of the context. Raises InvalidInput for a width below LEAST_WIDTH.
    """
    if width and width < LEAST_WIDTH:
        raise InvalidInput(
            f"--width is {width:g}; allowed for figure2: {LEAST_WIDTH:g} inches or more, both "
            "columns of a paper"
        )
    verifiers = list(dict.fromkeys(numbers.verifier))
    heights, columns = [2.9, *[1.95] * len(verifiers)], None
    num_panels = 1 + sum(name.startswith("residual_") for name in laws)
    if width:
        columns = min(num_panels, max(1, int(width / 1.6)))
        num_rows = math.ceil(num_panels / columns)
        heights = [3.4, *[0.5 + 1.8 * num_rows] * len(verifiers)]
    figure = Figure(figsize=(width or 11, sum(heights)), layout="constrained")
    top, *strips = figure.subfigures(len(heights), 1, height_ratios=heights)
    values = numbers.set_index(["verifier", "quantity", "rejections"]).context
    first = laws.verifier.iloc[0]
    is_narrow = bool(width and width < 9)
    _models(top, laws[laws.verifier == first], quote, values[first, "overlap", 0], is_narrow)
    highest = 1.35 * laws.filter(regex="^draft$|^residual_").max().max()
    furthest = 1.6 * max((laws.emitted - laws.target).abs().max(), 0.01)  # else noise fills it
    for strip, verifier in zip(strips, verifiers, strict=True):
        # the text of a rule describes its panels for any p and q, as long as several tokens have q
        # > p
        name, rule = labels.name("verifier", verifier), TEXTS["rules"].get(str(verifier))
        title = f"{name}: {rule}" if rule else name
        strip.suptitle(title, x=0.005, ha="left", fontsize=SIZE + 1.5, fontweight="bold")
        rule_laws = laws[laws.verifier == verifier]
        if rule_laws.empty:
            gap = str(Gap(*numbers[numbers.verifier == verifier].iloc[0][["status", "reason"]]))
            strip.text(0.5, 0.5, gap, ha="center", fontsize=SIZE)
        else:
            shape = (math.ceil(num_panels / columns), columns) if columns else (1, num_panels)
            _strip(strip, rule_laws, values[verifier], (highest, furthest), shape)
    return figure


def _models(
    part: SubFigure, laws: pd.DataFrame, quote: str, overlap: float, is_narrow: bool
) -> None:
    """Draw target and draft, with the names of the bars, which are the same in all panels.

    is_narrow: whether texts are short of room.
    """
    axes = part.subplots()
    middle = _sides(axes, laws)
    axes.bar(range(len(laws)), laws.target, color="0.65", label="target p: what has to come out")
    _outline(axes, laws, label="draft q: where candidates come from")
    axes.set_ylim(0, (1.9 if is_narrow else 1.35) * laws[["target", "draft"]].max().max())
    axes.set_ylabel("probability", fontsize=SIZE)
    style = {
        "transform": axes.get_xaxis_transform(),
        "va": "top",
        "fontsize": SIZE + 1,
        "fontweight": "bold",
    }
    names = ["the draft gives these too much (q > p)", "the draft gives these too little (q ≤ p)"]
    if is_narrow:
        room = 0.4 * part.figure.get_figwidth()
        names = [figures.wrapped(name, room, 0.7) for name in names]
    axes.text(-0.4, 0.97, names[0], color=OVER, **style)
    axes.text(middle + 0.2, 0.97, names[1], color=UNDER, **style)
    legend_top = 0.93 - 0.08 * (1 + names[0].count("\n")) if is_narrow else 0.9
    # on the right, where the least probable tokens are: on the left the draft's outline is high
    axes.legend(loc="upper right", bbox_to_anchor=(1, legend_top), frameon=False, fontsize=SIZE)
    title = axes.set_title(
        f"The next token after “{shortened(quote)}”", loc="left", fontsize=SIZE + 1.5
    )
    said = f"overlap of target and draft: {_percent(overlap)}"
    if is_narrow:
        axes.set_xlabel(said, fontsize=SIZE)
    else:
        axes.set_title(said, loc="right", fontsize=SIZE)
    figures.finish(axes)
    turned = {"rotation": 60 if is_narrow else 25, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(laws)), laws.text, **turned)
    for text in (title, *axes.get_xticklabels()):
        text.set_parse_math(False)  # a token may be a dollar sign


def _strip(
    part: SubFigure,
    laws: pd.DataFrame,
    values: pd.Series,
    limits: tuple[float, float],
    shape: tuple[int, int],
) -> None:
    """Draw the panels of one rule: the residual after each rejection, and the bias.

    values: numbers by quantity and rejections. limits: ends of the vertical axes of residuals and
    bias. shape: the numbers of rows and columns of panels.
    """
    names = [name for name in laws if name.startswith("residual_")]
    grid = part.subplots(*shape, squeeze=False).ravel()
    *panels, last = grid[: len(names) + 1]
    for axes in grid[len(names) + 1 :]:
        axes.set_axis_off()
    for count, (axes, name) in enumerate(zip(panels, names, strict=True), start=1):
        overdraft, rejected = values["overdraft", count], values["rejected", count]
        _sums(
            axes,
            laws,
            laws[name],
            (f"{_percent(overdraft)} here", f"{_percent(1 - overdraft)} here"),
        )
        _outline(axes, laws)
        axes.set_ylim(0, limits[0])
        share = _percent(rejected) if rejected >= 0.005 else "< 1 %"
        axes.set_title(
            f"after {count} rejection{'s' if count > 1 else ''} ({share} of drafts)", fontsize=SIZE
        )
        axes.set_xlabel(
            f"overlap with the draft: {_percent(values['overlap', count])}", fontsize=SIZE
        )
        axes.tick_params(labelleft=(count - 1) % shape[1] == 0)
    excess = _percent(values["excess"].iloc[0])
    _sums(last, laws, laws.emitted - laws.target, (f"{excess} too much", f"{excess} too little"))
    last.axhline(0, color="0.2", linewidth=0.6)
    last.set_ylim(-limits[1], limits[1])
    last.set_title("what comes out in the end, minus p", fontsize=SIZE)


def _sums(axes: Axes, laws: pd.DataFrame, values: pd.Series, totals: tuple[str, str]) -> None:
    """Draw bars in the colours of their sides. totals: the text above each side."""
    middle = _sides(axes, laws)
    axes.bar(
        range(len(laws)),
        values,
        color=[OVER if side == OVERDRAFTED else UNDER for side in laws.side],
    )
    style = {
        "transform": axes.get_xaxis_transform(),
        "va": "top",
        "fontweight": "bold",
        "fontsize": SIZE + 1,
    }
    if axes.get_figure(root=True).get_figwidth() < 9:
        totals = tuple(text.replace(" % ", " %\n") for text in totals)
    for end, text, colour in zip((-0.5, len(laws) - 0.5), totals, (OVER, UNDER), strict=True):
        axes.text((end + middle) / 2, 0.97, text, color=colour, ha="center", **style)
    figures.finish(axes)
    axes.set_xticks([])


def _sides(axes: Axes, laws: pd.DataFrame) -> float:
    """Tint both sides; return the end of the side with q > p."""
    start, middle, end = -0.6, float((laws.side == OVERDRAFTED).sum()) - 0.5, len(laws) - 0.4
    axes.axvspan(start, middle, color=OVER, alpha=0.07, linewidth=0)
    axes.axvspan(middle, end, color=UNDER, alpha=0.07, linewidth=0)
    axes.set_xlim(start, end)
    return middle


def _outline(axes: Axes, laws: pd.DataFrame, label: str | None = None) -> None:
    """Draw the outline of the draft's law over the bars."""
    edges = [place - 0.5 for place in range(len(laws) + 1)]
    axes.stairs(laws.draft, edges, color="black", linewidth=0.9, label=label)


def _percent(share: float) -> str:
    return f"{labels.number(100 * share, '.0f')} %"


if __name__ == "__main__":
    raise SystemExit(run("figure2", make))
