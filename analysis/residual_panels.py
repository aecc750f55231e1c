"""The panels of Figure 2: target and draft on top, and below, rule by rule, what rejections leave."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from analysis import figures, labels
from analysis.figures import SIZE

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
"""What the panels of a rule show for any p and q, as long as several tokens have q > p."""
LEAST_BIAS = 0.01
"""The axis of biases reaches at least this far, so that noise does not fill it."""
QUOTED = 70
"""Characters of the context in the title."""


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
            gap = labels.gap(numbers[numbers.verifier == verifier].iloc[0].to_dict())
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
        _bars(axes, laws, laws[name], (f"{_percent(over)} here", f"{_percent(1 - over)} here"))
        _outline(axes, laws)
        axes.set_ylim(0, limits[0])
        rejections = f"{count} rejection{'s' * (count > 1)}"
        axes.set_title(f"after {rejections} ({_rare(known['rejected', count])} of drafts)", fontsize=SIZE)
        axes.set_xlabel(f"overlap with the draft: {_percent(known['overlap', count])}", fontsize=SIZE)
        axes.tick_params(labelleft=count == 1)
    excess = _percent(known["excess"].iloc[0])
    _bars(last, laws, laws.emitted - laws.target, (f"{excess} too much", f"{excess} too little"))
    last.axhline(0, color="0.2", linewidth=0.6)
    last.set_ylim(-limits[1], limits[1])
    last.set_title("what comes out in the end, minus p", fontsize=SIZE)


def _bars(axes: Axes, laws: pd.DataFrame, values: pd.Series, totals: tuple[str, str]) -> None:
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
