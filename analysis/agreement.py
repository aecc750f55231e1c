"""Agreement: tokens a step of the paper's rules and exact methods against the models' overlap."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from analysis import audits, figures, labels, long, metrics
from analysis.artefact import Artefact, footer, run, texts
from analysis.crossing import Crossing, Fit
from analysis.figures import BLUE, GREEN, SIZE, Look
from analysis.labels import Label, number
from analysis.load import SETTING, Plan, Request, Results, load, other_prompts
from analysis.metrics import ACCEPTED_LENGTH
from analysis.stats import ABSENT, BRACKETS, Interval, paired_gain, ratio, resampled
from analysis.table import Column, Gap, Note, Notes, Number, Table, TableCell
from resispec.errors import InvalidInput

TEXTS = texts("agreement")
OVERLAP, OVER_RESISPEC = "overlap", "over_resispec"
FIELDS = ("num_prefixes", "selected")
"""Fields of the rows that measure overlap."""
ALL = "all data sets"
"""Name in place of a data set for all of them together."""
LEAST_PAIRS = 3
"""The least number of pairs with a fit."""
Method: TypeAlias = tuple[Any, Any, Any]
"""Decoder, tree and verifier."""
RECYCLED = "recycled"
LOOKS = figures.LOOKS | {"level_optimal": Look(GREEN, "s"), RECYCLED: Look(BLUE, "D")}
MARKERS = ("o", "s", "^", "D", "v", "P")
"""Markers of targets, in the order of their pairs."""


@dataclass(frozen=True)
class Measured:
    """One method's cells in a line: one cell, or one for each data set.

    rows: of all of them, or None if any is not done, of which status and reason are then. alike:
    the limits and the dtype of each. verdicts: of their audits.
    """

    status: str
    reason: str
    rows: pd.DataFrame | None
    alike: tuple[Any, ...]
    verdicts: tuple[str, ...]

    @property
    def length(self) -> Interval:
        """The accepted length."""
        return ABSENT if self.rows is None else ACCEPTED_LENGTH.of(self.rows)

    def over(self, other: "Measured | None") -> Interval:
        """The accepted length over another one; ABSENT unless both measured the same prompts.

        The limits and the dtypes must be the same, too.
        """
        if other is None or self.rows is None or other.rows is None:
            return ABSENT
        if self.alike != other.alike or other_prompts(self.rows, other.rows):
            return ABSENT
        return paired_gain(_tokens(self.rows), _tokens(other.rows))


@dataclass(frozen=True)
class AgreementLine:
    """A pair at a temperature, on a data set or on all of them.

    about: its labels. shared: the mass that draft and target share, summed over the positions of
    each prompt, and the number of these; None if it was not measured.
    """

    about: Mapping[str, Any]
    shared: tuple[np.ndarray, np.ndarray] | None
    methods: Mapping[Method, Measured]

    @property
    def overlap(self) -> Interval:
        """The overlap of draft and target."""
        return ABSENT if self.shared is None else ratio(*self.shared)

    @property
    def resispec(self) -> Measured | None:
        """ResiSpec's cells, with which the other methods are compared."""
        return next((one for method, one in self.methods.items() if is_resispec(method)), None)

    def best(self, exact: Collection[Method]) -> Method | None:
        """The method with the most tokens of the exact ones; None if none of them is done."""
        lengths = {method: one.length.value for method, one in self.methods.items()}
        known = [one for one in exact if not math.isnan(lengths.get(one, math.nan))]
        return max(known, key=lengths.__getitem__, default=None)


def make(plan: Plan) -> Artefact:
    """The table of all data sets together, that of each, and the figure.

    The overlap of draft and target is the mean of sum min(p, q) over the positions of the text that
    the target writes after the prompts. It is measured as the acceptance of one i.i.d. sibling
    there by the standard rule, min(1, p / q) at the token that was drawn, whose expectation it is;
    no acceptance is drawn.
    """
    decoded = load(plan.only(lambda cell: cell.part != OVERLAP), metrics.FIELDS)
    overlaps = load(plan.only(_measures_overlap), FIELDS)
    for results in (decoded, overlaps):
        results.check_one_setting(besides=("pair",))
    lines = list(_lines(decoded, overlaps))
    _check_one_resispec(lines)
    whole = [line for line in lines if line.about["dataset"] == ALL]
    single = [line for line in lines if line.about["dataset"] != ALL]
    exact = unbiased(single)
    about = [*sentences(whole), *TEXTS["about"], *_audits(single)]
    notes = footer(decoded, plan, about, [TEXTS["definitions"], BRACKETS], TEXTS["picture"])
    more = footer(decoded, plan, [TEXTS["datasets_about"]], [BRACKETS])
    datasets = labels.together(decoded.cells.dataset)
    caption = TEXTS["caption"].replace("{datasets}", datasets)
    return Artefact(
        (
            _table("agreement", whole, exact, caption, ("temperature", "pair"), notes),
            _table(
                "agreement_datasets",
                single,
                exact,
                TEXTS["datasets_caption"],
                ("temperature", "dataset", "pair"),
                more,
            ),
        ),
        {"agreement": partial(draw, whole)},
    )


def _check_one_resispec(lines: Iterable[AgreementLine]) -> None:
    """Raise InvalidInput for several ResiSpecs, as on two trees: gains are over one of them."""
    found = {_name(method) for line in lines for method in line.methods if is_resispec(method)}
    if len(found) > 1:
        raise InvalidInput(
            f"agreement compares with one ResiSpec; found {'; '.join(sorted(found))}; allowed: a "
            "sweep with one tree and one setting of it"
        )


def _measures_overlap(cell: Request) -> bool:
    """Whether a cell measures the overlap: the acceptance of other rules is none."""
    return cell.part == OVERLAP and Label.of(cell.labels["verifier"]).option == "standard"


def is_resispec(method: Method) -> bool:
    """Whether a method's verifier is ResiSpec, with any parameters."""
    return Label.of(method[2]).option == "resispec"


def _tokens(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    return rows[ACCEPTED_LENGTH.numerator], rows[ACCEPTED_LENGTH.denominator]


def _lines(decoded: Results, overlaps: Results) -> Iterator[AgreementLine]:
    """The lines of each pair at each temperature: its data sets, then ALL."""
    verdicts = audits.by_labels(decoded)
    by = [key for key in decoded.setting if key != "dataset"]
    cells = decoded.timed.assign(
        verdict=[
            verdicts.get(decoded.place(cell), {}).get("verdict", "")
            for cell in decoded.timed.to_dict("records")
        ]
    )
    for values, group in cells.groupby(by, sort=False):
        place = dict(zip(by, values, strict=True))
        measured = overlaps.cells
        for key, value in place.items():
            measured = measured[measured[key] == value] if key in measured else measured[:0]
        for dataset, of_dataset in [*group.groupby("dataset", sort=False), (ALL, group)]:
            datasets = set(of_dataset.dataset)
            methods = {
                method: _measured(decoded, own, datasets)
                for method, own in of_dataset.groupby(audits.METHOD, sort=False)
            }
            # the tree does not change the overlap: of cells with several trees one is enough
            drawn = measured[measured.dataset.isin(datasets)].drop_duplicates("dataset")
            rows = _measured(overlaps, drawn, datasets).rows if len(drawn) else None
            shared = None if rows is None else (_first(rows), rows.num_prefixes.to_numpy(float))
            yield AgreementLine(place | {"dataset": dataset}, shared, methods)


def _measured(results: Results, cells: pd.DataFrame, datasets: Set[str]) -> Measured:
    """The cells of one method, in the order of their data sets.

    datasets: those of the line. A method without some of them is not compared with the others.
    """
    if lacking := sorted(datasets - set(cells.dataset), key=str):
        names = ", ".join(map(partial(labels.name, "dataset"), lacking))
        return Measured("missing", f"not measured on {names}", None, (), ())
    gaps = cells[cells.status != "done"]
    first = (gaps if len(gaps) else cells).iloc[0]
    rows, alike = None, ()
    if gaps.empty:
        parts = [results.rows[cell_id] for cell_id in cells.cell_id]
        rows = pd.concat(parts, ignore_index=True)
        alike = tuple(part.attrs["alike"] for part in parts)
    verdicts = tuple(cells.verdict) if "verdict" in cells else ()
    return Measured(first.status, first.reason, rows, alike, verdicts)


def _first(rows: pd.DataFrame) -> np.ndarray:
    """The sums of the first sibling's acceptance, one a prompt."""
    return np.array([selected[0] for selected in rows.selected], np.float64)


def _records(line: AgreementLine) -> Iterator[dict[str, Any]]:
    """The rows of a line in the long frame: its overlap, then the quantities of each method."""
    empty = dict.fromkeys(audits.METHOD, "") | {"status": "done", "reason": "", "verdict": ""}
    count = 0 if line.shared is None else len(line.shared[0])
    about = dict(line.about)
    yield from long.records(about | empty | {"num_prompts": count}, {OVERLAP: line.overlap})
    for method, one in line.methods.items():
        facts = dict(zip(audits.METHOD, method, strict=True))
        facts |= {"status": one.status, "reason": one.reason}
        facts["verdict"] = one.verdicts[0] if len(set(one.verdicts)) == 1 else ""
        facts["num_prompts"] = 0 if one.rows is None else len(one.rows)
        numbers = {ACCEPTED_LENGTH.name: one.length}
        if not is_resispec(method):
            numbers[OVER_RESISPEC] = one.over(line.resispec)
        yield from long.records(about | facts, numbers)


def _table(
    stem: str,
    lines: Sequence[AgreementLine],
    exact: Collection[Method],
    caption: str,
    order: Sequence[str],
    notes: Notes,
) -> Table:
    """A table of lines: names, overlap, tokens a step by method, and best exact one over ResiSpec.

    order: the labels that lines are ordered by, but those of the last one by their overlap.
    """
    records = [record for line in lines for record in _records(line)]
    names = ["status", "reason", "num_prompts", "quantity", "value", "lower", "upper", "verdict"]
    keys = list(lines[0].about) if lines else list(order)
    frame = pd.DataFrame(records, columns=[*keys, *audits.METHOD, *names])
    more = [key for key in keys if key not in (*SETTING, *order)]
    varying, fixed = long.split_keys(frame, more)
    shown = long.names([*order, *varying])
    methods = list(dict.fromkeys(method for line in lines for method in line.methods))
    columns = [
        *shown,
        Column(OVERLAP, "Overlap", "number"),
        *(
            Column(ACCEPTED_LENGTH.name, labels.method_on_tree(decoder, verifier, tree), "number")
            for decoder, tree, verifier in methods
        ),
        Column(OVER_RESISPEC, "Best exact / ResiSpec", "number"),
        Column("best", "Best exact", "text"),
    ]
    ranked = sorted(lines, key=lambda line: _rank(line, order))
    rows = tuple(_cells(line, shown, methods, exact) for line in ranked)
    return Table(stem, tuple(columns), rows, caption + fixed, frame, notes)


def _rank(line: AgreementLine, order: Sequence[str]) -> tuple[Any, ...]:
    ranks = [labels.rank(key, line.about[key]) for key in order[:-1]]
    return (*ranks, -1.0 if line.shared is None else line.overlap.value)


def _cells(
    line: AgreementLine,
    shown: Sequence[Column],
    methods: Sequence[Method],
    exact: Collection[Method],
) -> tuple[TableCell, ...]:
    """The cells of a line of a table."""
    cells: list[TableCell] = [column.cell({(): line.about}) for column in shown]
    cells.append(Number.of(line.overlap, ".3f"))
    for method in methods:
        one = line.methods.get(method)
        if one is not None and one.rows is None:
            cells.append(Gap(one.status, one.reason))
        else:
            cells.append(Number.of(ABSENT if one is None else one.length, ACCEPTED_LENGTH.spec))
    best = line.best(exact)
    over = ABSENT if best is None else line.methods[best].over(line.resispec)
    return (*cells, Number.of(over, ".2f"), _name(best) if best else labels.ABSENT)


def _name(method: Method) -> str:
    return labels.method_on_tree(method[0], method[2], method[1])


def verdicts_of(lines: Sequence[AgreementLine]) -> dict[Method, list[str]]:
    """The verdicts of each method that has some, over lines of single data sets that are done."""
    verdicts: dict[Method, list[str]] = {}
    for line in lines:
        for method, one in line.methods.items():
            if one.rows is not None:
                verdicts.setdefault(method, []).extend(one.verdicts)
    return {method: found for method, found in verdicts.items() if any(found)}


def unbiased(lines: Sequence[AgreementLine]) -> list[Method]:
    """The methods all of whose done cells have an audit that sees no bias."""
    return [method for method, found in verdicts_of(lines).items() if audits.is_acquitted(found)]


def _audits(lines: Sequence[AgreementLine]) -> list[Note]:
    """The note that counts the verdicts of each method over lines of single data sets."""
    counts = [
        f"{_name(method)}: {audits.counted(found)}" for method, found in verdicts_of(lines).items()
    ]
    return [f"Audits. {'; '.join(counts)}."] if counts else []


def fit(lines: Sequence[AgreementLine]) -> Fit | None:
    """The fit of the lines, one a pair, with overlap and all methods; None below LEAST_PAIRS.

    Without resamples of one of them, for too few prompts, it has none at all, and no intervals.
    """
    methods = list(dict.fromkeys(method for line in lines for method in line.methods))
    points = [
        line
        for line in lines
        if line.shared is not None
        and all(method in line.methods for method in methods)
        and all(one.rows is not None for one in line.methods.values())
    ]
    if len(points) < LEAST_PAIRS:
        return None
    shared = [resampled(line.shared) for line in points if line.shared is not None]
    lengths = {
        method: [resampled(_tokens(line.methods[method].rows)) for line in points]
        for method in methods
    }
    count = min(len(drawn) for found in (shared, *lengths.values()) for _, drawn in found)
    overlaps, drawn_overlaps = _stacked(shared, count)
    logs, drawn_logs = {}, {}
    for method, found in lengths.items():
        values, drawn = _stacked(found, count)
        logs[method], drawn_logs[method] = np.log(values), np.log(drawn)
    return Fit(overlaps, drawn_overlaps, logs, drawn_logs)


def _stacked(
    found: Sequence[tuple[float, np.ndarray]], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ratios of K pairs, (K,), and their first resamples, (count, K)."""
    values, drawn = zip(*found, strict=True)
    return np.array(values), np.stack([resamples[:count] for resamples in drawn], -1)


def sentences(lines: Sequence[AgreementLine]) -> list[str]:
    """For each temperature: where the fits of other methods pass ResiSpec's."""
    said = []
    for where, group in _by_setting(lines):
        fitted = fit(group)
        if fitted is None:
            said.append(f"{where}: {TEXTS['too_few'].format(least=LEAST_PAIRS)}")
            continue
        parts = [f"{_name(method)}: {_said(one)}." for method, one in _crossings(fitted).items()]
        if not parts:
            continue
        least, most = (number(end, ".2f") for end in (min(fitted.overlaps), max(fitted.overlaps)))
        said.append(f"{where}, measured overlaps of {least} to {most}. {' '.join(parts)}")
    return [f"{TEXTS['passing']} {said[0]}", *said[1:]] if said else []


def _crossings(fitted: Fit) -> dict[Method, Crossing]:
    """Where the fit of each other method passes ResiSpec's; empty without ResiSpec."""
    reference = next(filter(is_resispec, fitted.logs), None)
    others = [method for method in fitted.logs if not is_resispec(method)]
    return {one: fitted.crossing(one, reference) for one in others} if reference else {}


def _by_setting(
    lines: Sequence[AgreementLine],
) -> Iterator[tuple[str, list[AgreementLine]]]:
    """Names and lines of each temperature and each value of other keys that the sweep varied."""
    groups: dict[str, list[AgreementLine]] = {}
    for line in lines:
        keys = [key for key in line.about if key not in ("pair", "dataset")]
        where = labels.setting({key: line.about[key] for key in keys})
        groups.setdefault(where, []).append(line)
    yield from groups.items()


def _said(crossing: Crossing) -> str:
    """A crossing in words."""
    at = crossing.overlap
    if math.isinf(at.value):
        return _said_of_falling(crossing)
    words = number(at.value, ".2f")
    if not math.isnan(at.lower):
        ends = [number(end, ".2f") if math.isfinite(end) else "∞" for end in (at.lower, at.upper)]
        words += f" [{', '.join(ends)}]"
    if at.value < crossing.least:
        return TEXTS["above"].format(at=words)
    if at.value > crossing.most:
        return TEXTS["below"].format(at=words)
    return TEXTS["inside"].format(at=words)


def _said_of_falling(crossing: Crossing) -> str:
    """In words how a method lies that comes no nearer to ResiSpec as the overlap rises."""
    first, last = crossing.leads
    if first <= 0:
        return TEXTS["never"]
    if last > 0:
        return TEXTS["always"]
    at = crossing.least + (crossing.most - crossing.least) * first / (first - last)
    return TEXTS["up_to"].format(at=number(at, ".2f"))


def draw(lines: Sequence[AgreementLine], width: float | None = None) -> Figure:
    """The figure: a panel a temperature, tokens a step (logarithmic) over the overlap, with fits.

    lines: those of all data sets together.
    """
    known = [line for line in lines if line.shared is not None]
    panels = list(_by_setting(known)) or [("", [])]
    columns, size = len(panels), (1.0 + 3.6 * len(panels), 4.6)
    if width:
        columns = len(panels) if width > 3 * len(panels) else 1
        size = (width, 1.6 + 3.0 * len(panels) / columns)
    figure = Figure(figsize=size, layout="constrained")
    shape = (math.ceil(len(panels) / columns), columns)
    grid = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    targets = list(dict.fromkeys(labels.models(line.about["pair"])[0] for line in known))
    methods = list(dict.fromkeys(method for line in known for method in line.methods))
    for axes, (where, group) in zip(grid.flat, panels, strict=False):
        _panel(axes, group, targets)
        axes.set_title(where, fontsize=SIZE + 0.5)
    for axes in grid[:, 0]:
        axes.set_ylabel("tokens a step (logarithmic)", fontsize=SIZE + 0.5)
    for axes in grid[-1]:
        axes.set_xlabel("overlap of draft and target", fontsize=SIZE + 0.5)
    biased = [
        method
        for method in methods
        for line in known
        if method in line.methods
        and (is_resispec(method) or any(map(audits.is_biased, line.methods[method].verdicts)))
    ]
    names = {one: f"{_name(one)}{' (biased)' if one in biased else ''}" for one in methods}
    handles = [Line2D([], [], label=name, **_style(one)) for one, name in names.items()]
    if len(targets) > 1:
        handles += [
            Line2D([], [], color="0.4", linestyle="", marker=_marker(targets, name), label=name)
            for name in targets
        ]
    if width:
        for handle in handles:
            handle.set_label(figures.wrapped(str(handle.get_label()), 0.8 * width))
    figures.legend_above(figure, handles, TEXTS["title"])
    return figure


def _look(method: Method) -> Look:
    decoder, _, verifier = method
    name = RECYCLED if decoder == RECYCLED else Label.of(verifier).option
    return figures.looks([name])[name] if name not in LOOKS else LOOKS[name]


def _style(method: Method) -> dict[str, Any]:
    look = _look(method)
    return {"color": look.colour, "linestyle": look.line, "linewidth": 1.2}


def _marker(targets: Sequence[str], target: str) -> str:
    return MARKERS[targets.index(target) % len(MARKERS)]


def _panel(axes: Axes, lines: Sequence[AgreementLine], targets: Sequence[str]) -> None:
    """Draw points with both intervals and, in their range, fits and where they pass ResiSpec's."""
    values = [1.0]
    for line in lines:
        overlap = line.overlap
        marker = _marker(targets, labels.models(line.about["pair"])[0])
        for method, one in line.methods.items():
            length = one.length
            if math.isnan(length.value):
                continue
            values.append(length.value)
            axes.errorbar(
                [overlap.value],
                [length.value],
                xerr=_sides(overlap),
                yerr=_sides(length),
                color=_look(method).colour,
                marker=marker,
                markersize=5,
                elinewidth=0.8,
                linestyle="",
            )
    fitted = fit(lines)
    if fitted:
        ends = np.array([fitted.overlaps.min(), fitted.overlaps.max()])
        for method in fitted.logs:
            slope, intercept = fitted.line(method)
            axes.plot(ends, np.exp(intercept + slope * ends), **_style(method))
        for method, crossing in _crossings(fitted).items():
            if crossing.least <= crossing.overlap.value <= crossing.most:
                axes.axvline(
                    crossing.overlap.value, color=_look(method).colour, linewidth=0.8, linestyle=":"
                )
    axes.set_yscale("log")
    ticks = range(1, 2 + math.ceil(max(values)))
    axes.yaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figures.finish(axes)


def _sides(interval: Interval) -> list[list[float]]:
    ends = (interval.value - interval.lower, interval.upper - interval.value)
    return [[float(np.nan_to_num(max(0.0, end)))] for end in ends]


if __name__ == "__main__":
    raise SystemExit(run("agreement", make))
