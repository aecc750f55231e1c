"""Lossy: tokens a step against bias, of dials on exact verifiers and the field's lossy rules."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import figures, labels, metrics
from analysis.artefact import Artefact, footer, run, texts
from analysis.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SIZE, SKY, Look
from analysis.labels import Label
from analysis.load import LABELS, SETTING, Plan, load
from analysis.metric_table import by_cell, definitions, measure, of_other_prompts, with_measured
from analysis.metrics import Metric
from analysis.stats import ABSENT, Interval, ratio
from analysis.table import number

TEXTS = texts("lossy")
BIAS = Metric("bias", "Bias", TEXTS["bias"], spec=".3f")
FEW = Metric("bias_few", "Bias, half the sample", TEXTS["bias_few"], spec=".3f")
CLASSES = Metric("bias_of_classes", "Bias, classes", TEXTS["bias_of_classes"], spec=".3f")
ACCEPTANCE = Metric("node_acceptance", "Acceptance", TEXTS["node_acceptance"], spec=".3f")
CEILING = Metric("node_ceiling", "A*", TEXTS["node_ceiling"], spec=".3f")
MEASURED = (BIAS, FEW, CLASSES, ACCEPTANCE, CEILING)
LENGTH, SPEED = metrics.ACCEPTED_LENGTH, metrics.TOKENS_PER_S
COLUMNS = (LENGTH, SPEED, *MEASURED)
FIELDS = (
    *("num_prefixes", "num_tuples", "emitted", "excess", "inner"),
    *("few_variation", "variation", "acceptance", "ceiling"),
)
DECODER, TREE, RULE = "specinfer", "d5b3", "optimal"
"""The tree and the exact rule of the dial that the sentences compare ResiSpec with."""
LOOKS = figures.LOOKS | {
    "level_optimal": Look(GREEN, "s"),
    "lenience": Look(ORANGE, "P", ":"),
    "typical": Look(PURPLE, "v"),
    "relaxed": Look(SKY, "<"),
    "hsd": Look(GREY, "D"),
}
EAGLE = Look(BLUE, "h")


def make(plan: Plan) -> Artefact:
    """The table of the cells that decode, with the bias of each, and the figure."""
    results = load(plan.only(lambda cell: not is_bias(cell.part)), metrics.FIELDS)
    results.check_one_setting(besides=("pair",))
    frame = with_biases(measure(results), plan)
    about = [*sentences(frame), *TEXTS["about"], *_classes_beside_tuples(frame)]
    about += of_other_prompts(frame, CLASSES)
    notes = footer(results, plan, about, definitions(COLUMNS, results), TEXTS["picture"])
    table = by_cell("lossy", results, frame, TEXTS["caption"], notes, COLUMNS)
    return Artefact((table,), {"lossy": partial(draw, frame)})


def is_bias(part: str) -> bool:
    """Whether a part of the artefact measures bias."""
    return part.startswith("bias")


def with_biases(frame: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """The frame of `measure` with MEASURED for each cell; NaN if its bias is not measured."""
    biases = load(plan.only(lambda cell: is_bias(cell.part)), FIELDS)
    keys = [name for name in (*LABELS, *biases.more) if name in frame]

    def place(about: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(about[key]) for key in keys)

    measured = {
        place(about): (quantities(rows), len(rows))
        for about, rows in biases.each()
        if rows is not None
    }
    return with_measured(frame, [metric.name for metric in MEASURED], place, measured)


def quantities(rows: pd.DataFrame) -> dict[str, Interval]:
    """The quantities of MEASURED from the rows of a bias cell, bootstrapped over prompts."""
    halves = np.array(rows.excess.tolist(), np.float64)  # (prompts, 2, classes)
    of_all, of_half = (
        ratio(excess_of_classes(halves.sum(1), chosen_by), rows.emitted)
        for chosen_by in (halves.sum(1), halves[:, 0])
    )
    inner = rows.inner.map(np.array)
    if rows.variation.map(lambda values: None in values).any():  # no sibling rule
        return {BIAS.name: of_all, FEW.name: of_half, CLASSES.name: of_all}

    def weighted(name: str) -> pd.Series:
        """The sum of a prompt's entries, each as often as a step passes such nodes."""
        return (inner * rows[name].map(np.array)).map(np.sum)

    found = {
        BIAS.name: ratio(weighted("variation"), rows.emitted),
        FEW.name: ratio(weighted("few_variation"), rows.emitted),
        CLASSES.name: of_all,
        ACCEPTANCE.name: ratio(weighted("acceptance"), inner.map(np.sum)),
    }
    if not rows.ceiling.map(lambda values: None in values).any():
        found[CEILING.name] = ratio(weighted("ceiling"), inner.map(np.sum))
    return found


def excess_of_classes(excess: np.ndarray, chosen_by: np.ndarray) -> np.ndarray:
    """The excess (prompts,) of the classes that other prompts have too often.

    excess, chosen_by: (prompts, classes). Every second prompt's classes are those whose sum over
    the remaining prompts in `chosen_by` is positive, so an exact verifier's mean is 0.
    """
    values = np.zeros(len(excess))
    for start in (0, 1):
        is_chosen = chosen_by[1 - start :: 2].sum(0) > 0
        values[start::2] = excess[start::2] @ is_chosen
    return values


class BiasPoint(NamedTuple):
    """A method's bias, tokens a step and tokens a second. about: its labels."""

    about: Mapping[str, Any]
    bias: Interval
    length: Interval
    speed: Interval


def points(frame: pd.DataFrame) -> list[BiasPoint]:
    """The methods whose bias and tokens are known, in the order of the table."""
    found = []
    for _, rows in frame.groupby("cell_id", sort=False):
        numbers = {
            row["quantity"]: Interval(row["value"], row["lower"], row["upper"])
            for row in rows.to_dict("records")
        }
        values = [numbers.get(metric.name, ABSENT) for metric in (BIAS, LENGTH, SPEED)]
        if not any(math.isnan(one.value) for one in values[:2]):
            found.append(BiasPoint(rows.iloc[0].to_dict(), *values))
    return found


def dialled(point: BiasPoint) -> str:
    """The exact verifier of a dial; "" for any other verifier."""
    label = Label.of(point.about["verifier"])
    return labels.owner_of_tree(label) if label.option == "dial" else ""


def curve(found: list[BiasPoint], rule: str, tree: str, decoder: str = DECODER) -> list[BiasPoint]:
    """An exact verifier with a decoder and a tree, then the dial on it by rising strength."""
    of_rule = [
        point
        for point in found
        if (str(point.about["decoder"]), str(point.about["tree"])) == (decoder, tree)
        and rule in (str(point.about["verifier"]), dialled(point))
    ]

    def strength(point: BiasPoint) -> float:
        parameters = Label.of(point.about["verifier"]).parameters
        return float(parameters.get("chance", parameters.get("bias", 0.0)))

    return sorted(of_rule, key=strength)


def sentences(frame: pd.DataFrame) -> list[str]:
    """Sentences about each setting with ResiSpec and a dial on TREE.

    They give the dial's bias for as many tokens, and its tokens for as much bias, interpolated
    between measured chances.
    """
    lines = []
    for _, rows in frame.groupby([*SETTING], sort=False):
        found = points(rows)
        dial = curve(found, RULE, TREE)
        theirs = [point for point in found if _method(point.about) == (DECODER, "resispec", TREE)]
        if len(dial) < 2 or len(theirs) != 1:
            continue
        [point] = theirs
        where = labels.setting(
            {key: point.about[key] for key in ("pair", "dataset", "temperature")}
        )
        lines.append(
            f"{where}, {labels.name('tree', TREE)}: ResiSpec emits "
            f"{number(point.length.value, '.2f')} tokens a step at a bias of "
            f"{number(point.bias.value, '.3f')}. {compared(point, dial)}"
        )
    return lines


def compared(point: BiasPoint, dial: list[BiasPoint]) -> str:
    """The sentence about a method and a curve of the dial."""
    numbers = sorted((one.length.value, one.bias.value) for one in dial)
    lengths, biases = np.array(numbers).T
    length, bias = point.length.value, point.bias.value
    needed = f"{number(np.interp(length, lengths, biases) / bias, '.2f')} of its bias"
    if length > lengths[-1]:
        needed = f"more than {needed}"
    elif length <= lengths[0]:
        needed = "no bias"
    # of dials that are not more biased the one with the most tokens, so that noise is no gain
    order = np.argsort(biases, kind="stable")
    kept = f"{number(np.interp(bias, biases[order], lengths[order]) / length, '.2f')} times"
    at = "at its bias" if bias <= biases.max() else "at less than its bias"
    return f"For as many tokens the dial on {RULE} needs {needed}; {at} it keeps {kept} its tokens."


def _classes_beside_tuples(frame: pd.DataFrame) -> list[str]:
    """The note on how much of the bias of sibling rules the classes of tokens find."""
    values = frame.pivot_table(index="cell_id", columns="quantity", values="value", sort=False)
    if not {BIAS.name, CLASSES.name, ACCEPTANCE.name} <= set(values):
        return []
    rules = values[values[ACCEPTANCE.name].notna()]
    biased = rules[rules[BIAS.name] > TEXTS["least_bias"]]
    if biased.empty:
        return []
    share = biased[CLASSES.name] / biased[BIAS.name]
    return [
        TEXTS["beside"].format(
            count=len(biased),
            least=TEXTS["least_bias"],
            mean=number(share.mean(), ".2f"),
            low=number(share.min(), ".2f"),
            high=number(share.max(), ".2f"),
        )
    ]


class Series(NamedTuple):
    """Points of one name and look. is_line: whether they are one verifier's, in order."""

    name: str
    look: Look
    points: list[BiasPoint]
    is_line: bool
    is_filled: bool


def series(found: list[BiasPoint]) -> list[Series]:
    """The curves of the figure, then single methods."""
    shown, drawn = [], set[int]()

    def add(
        name: str, look: Look, members: list[BiasPoint], is_line: bool, is_filled: bool
    ) -> None:
        drawn.update(map(id, members))
        shown.append(Series(name, look, members, is_line, is_filled))

    def place(one: BiasPoint) -> tuple[str, str]:
        return str(one.about["decoder"]), str(one.about["tree"])

    def where(decoder: str, tree: str) -> str:
        drafted = "" if decoder == DECODER else f"{labels.name('decoder', decoder)}, "
        return f"{drafted}{labels.name('tree', tree)}"

    for rule, decoder, tree in dict.fromkeys((dialled(one), *place(one)) for one in found):
        if rule:
            look, is_own = LOOKS.get(rule, EAGLE), tree == "own_121"
            name = f"dial on {labels.name('verifier', rule)}, {where(decoder, tree)}"
            look = Look(look.colour, look.marker, "--" if is_own else "-")
            add(name, look, curve(found, rule, tree, decoder), True, not is_own)
    lenient = [one for one in found if Label.of(one.about["verifier"]).option == "lenience"]
    for decoder, tree in dict.fromkeys(map(place, lenient)):
        members = [one for one in lenient if place(one) == (decoder, tree)]
        # with factor 1 it is the standard rule
        members += [one for one in curve(found, "standard", tree, decoder) if not dialled(one)]
        members.sort(key=lambda one: one.length.value)
        add(f"lenience, {where(decoder, tree)}", LOOKS["lenience"], members, True, True)
    for one in found:
        if id(one) in drawn:
            continue
        about = one.about
        look = LOOKS.get(Label.of(about["verifier"]).option, EAGLE)
        is_eagle = str(about["decoder"]).startswith("eagle")
        name = f"{labels.name('verifier', about['verifier'])}, {labels.name('tree', about['tree'])}"
        if is_eagle:
            name, look = labels.method_on_tree(*_method(about)), Look(look.colour, EAGLE.marker)
        add(name, look, [one], False, str(about["tree"]) != "own_121")
    return shown


def _method(about: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(about["decoder"]), str(about["verifier"]), str(about["tree"])


def draw(frame: pd.DataFrame, width: float | None = None) -> Figure:
    """The figure: a column a temperature, tokens a step above, tokens a second below.

    It has the pair and data set with the most methods, and methods of other drafters of its target:
    those with a decoder that it has not, each of the first pair with it.
    """
    known = points(frame)
    title = TEXTS["title"]
    settings = [(str(one.about["pair"]), str(one.about["dataset"])) for one in known]
    if settings:
        pair, dataset = max(dict.fromkeys(settings), key=settings.count)
        target = labels.models(pair)[0]
        known = [
            one
            for one in known
            if labels.models(one.about["pair"])[0] == target
            and str(one.about["dataset"]) == dataset
        ]
        # a curve is of one pair
        places = [(str(one.about["decoder"]), str(one.about["pair"])) for one in known]
        owners = dict(reversed(places)) | {decoder: own for decoder, own in places if own == pair}
        known = [
            one for one, (decoder, own) in zip(known, places, strict=True) if owners[decoder] == own
        ]
        if len(known) < len(settings):
            title += f": {labels.setting({'pair': pair, 'dataset': dataset})}, of several settings"
    temperatures = list(dict.fromkeys(one.about["temperature"] for one in known)) or [1.0]
    by_temperature = [
        series([one for one in known if one.about["temperature"] == at]) for at in temperatures
    ]
    is_narrow = width is not None and width < 3 * len(temperatures)
    shape = (2, len(temperatures))
    size = (4.4 * shape[1] + 1, 7.6)
    if is_narrow:
        shape = (2 * len(temperatures), 1)
    if width:
        size = (width, 2.6 * shape[0] + 3.2)
    figure = Figure(figsize=size, layout="constrained")
    shared = {"sharex": True, "sharey": False if is_narrow else "row"}
    grid = figure.subplots(*shape, squeeze=False, **shared)
    panels = grid.ravel() if is_narrow else grid.T.ravel()
    heads = {"length": "tokens a step", "speed": "tokens a second"}
    places = [(at, name) for at in range(len(temperatures)) for name in heads]
    for axes, (at, name) in zip(panels, places, strict=True):
        for one in by_temperature[at]:
            _plot(axes, one, name)
        axes.set_ylabel(heads[name], fontsize=SIZE + 0.5)
        axes.set_xlabel("bias: total variation a token", fontsize=SIZE + 0.5)
        axes.set_title(f"T = {temperatures[at]:g}", fontsize=SIZE + 0.5)
        figures.finish(axes)
    handles = {one.name: _handle(one) for column in by_temperature for one in column}
    if width:
        for handle in handles.values():
            handle.set_label(figures.wrapped(str(handle.get_label()), 0.75 * width))
    figures.legend_above(figure, list(handles.values()), title)
    return figure


def _style(one: Series) -> dict[str, Any]:
    fill = {} if one.is_filled else {"markerfacecolor": "white"}
    line = one.look.line if one.is_line else ""
    looks = {"color": one.look.colour, "marker": one.look.marker, "linestyle": line}
    return looks | {"markersize": 6, "linewidth": 1.3} | fill


def _handle(one: Series) -> Line2D:
    return Line2D([], [], label=one.name, **_style(one))


def _plot(axes: Axes, one: Series, name: str) -> None:
    """Draw a series with the intervals of both quantities. name: `length` or `speed`."""
    across, along = [point.bias for point in one.points], [getattr(p, name) for p in one.points]

    def sides(numbers: list[Interval]) -> np.ndarray:
        ends = [(each.value - each.lower, each.upper - each.value) for each in numbers]
        return np.nan_to_num(np.array(ends).T).clip(min=0)

    axes.errorbar(
        [each.value for each in across],
        [each.value for each in along],
        xerr=sides(across),
        yerr=sides(along),
        elinewidth=0.6,
        **_style(one),
    )


if __name__ == "__main__":
    raise SystemExit(run("lossy", make))
