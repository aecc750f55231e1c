"""Headline of the page: the paper's claim, the verdict that follows from the measured rows, and its facts.

A fact is a sentence around measured numbers. One whose rows are not there says so, and names the command that
measures them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import labels
from analysis.artefact import paper
from analysis.load import LABELS, SETTING
from analysis.metrics import ACCEPTED_LENGTH
from analysis.page.sections import Section, titled
from analysis.published import DECIDED
from analysis.stats import ABSENT, Interval
from resispec.audit.verdict import LIMIT, Finding

LENGTH, GAIN, CEILING = ACCEPTED_LENGTH.name, "accepted_length_gain", "ceiling"
SPEC = ACCEPTED_LENGTH.spec
CLAIMED = {"table1": (GAIN, "speedup"), "table3": ("speedup",)}
"""The paper's tables whose figures are its claim, and their columns."""
BEYOND_THE_PAPER = ("frontier", "levels")
"""The artefacts that ask how far an exact verifier comes."""
COLUMNS = ["cell_id", "decoder", "tree", "verifier", "quantity", "value", "lower", "upper", "verdict"]


@dataclass(frozen=True)
class Fact:
    """One measured fact.

    value: large, a few characters. sentence: Markdown. artefacts: whose rows it rests on. finding: a
    `Finding`, or "".
    """

    label: str
    value: str
    sentence: str
    artefacts: tuple[str, ...]
    finding: str = ""


@dataclass(frozen=True)
class Bar:
    """One accepted length of the picture. share: of the longest bar. kind: a `Finding`, "ceiling" or ""."""

    label: str
    text: str
    share: float
    kind: str


@dataclass(frozen=True)
class Headline:
    """The first lines that a reader sees.

    claim: the paper's, Markdown. text, finding: what the audits say of it. setting, bars: the accepted
    lengths of one setting; no bars where it is not measured.
    """

    claim: str
    text: str
    finding: str
    facts: tuple[Fact, ...]
    setting: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Measured:
    """The long frames of the artefacts' first tables, and the commands that measure them, by name."""

    frames: Mapping[str, pd.DataFrame]
    makes: Mapping[str, str]

    def rows(self, artefact: str, quantity: str) -> pd.DataFrame:
        """The rows of an artefact that have a number for a quantity; without any, an empty frame."""
        frame = self.frames.get(artefact)
        if frame is None or "quantity" not in frame:
            return pd.DataFrame(columns=COLUMNS)
        return frame[(frame.quantity == quantity) & frame.value.notna()].assign(artefact=artefact)

    def of_resispec(self, artefact: str, quantity: str) -> pd.DataFrame:
        """The `rows` whose verifier is ResiSpec."""
        rows = self.rows(artefact, quantity)
        return rows[is_resispec(rows)]

    def audited(self) -> pd.DataFrame:
        """A row for every cell that decodes and has an audit, each once, with its artefact."""
        rows = [self.rows(name, LENGTH) for name, frame in self.frames.items() if "verdict" in frame]
        together = pd.concat([pd.DataFrame(columns=[*COLUMNS, "artefact"]), *rows])
        return together[together.verdict != ""].drop_duplicates("cell_id")

    def unknown(self, label: str, artefact: str) -> Fact:
        """The fact that there are no rows."""
        make = self.makes.get(artefact)
        sentence = f"{titled(artefact)} has no such rows yet; `{make}` measures them." if make else ""
        return Fact(label, "not measured yet", sentence, (artefact,) if make else ())


def judge(sections: Sequence[Section]) -> Headline:
    """The headline that follows from the artefacts' first tables."""
    measured = Measured(
        {section.name: section.made.tables[0].frame for section in sections if section.made},
        {section.name: section.make for section in sections},
    )
    figures, on_trees = (paper(name, names) for name, names in CLAIMED.items())
    claim = (
        "The paper *ResiSpec* (arXiv 2608.24411) presents a verifier for trees of drafted tokens that it "
        f"calls lossless, with up to {figures[GAIN].max():.2f} times the accepted length of SpecInfer and "
        f"{figures.speedup.max():.2f} times its throughput in its Table 1, and up to "
        f"{on_trees.speedup.max():.2f} times on other trees (Table 3)."
    )
    verdict, paper_check = losslessness(measured), own_check(measured)
    gains = gain(measured, figures), above_ceiling(measured), best_unbiased(measured)
    text = {
        Finding.BIASED: "ResiSpec is not lossless: its output does not have the target's law",
        Finding.NO_BIAS_SEEN: "No bias of ResiSpec was found in the rows measured so far",
        "": "No audit of ResiSpec is decided here yet",
    }[verdict.finding]
    facts = (verdict, *gains, others(measured), paper_check)
    return Headline(claim, text, str(verdict.finding), facts, *_picture(measured))


def is_resispec(rows: pd.DataFrame) -> pd.Series:
    """Whether the verifier of each row is ResiSpec, with whatever options."""
    return rows.verifier.map(lambda verifier: labels.Label.of(verifier).option == "resispec").astype(bool)


def losslessness(measured: Measured) -> Fact:
    """Number of ResiSpec's audited rows that are biased."""
    audited, label = measured.audited(), "ResiSpec's rows that audit as biased"
    decided, biased, unbiased = _decided(audited[is_resispec(audited)])
    if decided.empty:
        return measured.unknown(label, "table1")
    sentence = (
        f"Of {len(decided)} rows with ResiSpec whose audit is decided, {len(biased)} do not have the "
        f"target's law: a z-score of their tokens lies beyond {LIMIT:g} standard errors."
    )
    sentence += f" The others are {_methods(unbiased)}." if len(unbiased) and len(biased) else ""
    finding = Finding.BIASED if len(biased) else Finding.NO_BIAS_SEEN
    count, artefacts = f"{len(biased)} of {len(decided)}", tuple(decided.artefact.unique())
    return Fact(label, count, sentence, artefacts, finding)


def others(measured: Measured) -> Fact:
    """Number of the audited rows without ResiSpec in which no bias was seen."""
    audited = measured.audited()
    rows = audited[~is_resispec(audited)]
    label, (decided, biased, unbiased) = "Other rows without a bias seen", _decided(rows)
    if decided.empty:
        return measured.unknown(label, "table1")
    count = f"{len(unbiased)} of {len(decided)}"
    sentence = f"The same audit sees no bias in {count} decided rows without ResiSpec."
    sentence += f" It finds one in {_methods(biased)}." if len(biased) else ""
    undecided = int((rows.verdict == Finding.UNDECIDED).sum())
    sentence += f" Too few tokens decide {undecided} more." if undecided else ""
    return Fact(label, count, sentence, tuple(decided.artefact.unique()), Finding.NO_BIAS_SEEN)


def _decided(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Rows whose audit is decided, then those of them with a bias, and those without one seen."""
    decided = rows[rows.verdict.isin(DECIDED)]
    is_biased = decided.verdict == Finding.BIASED
    return decided, decided[is_biased], decided[~is_biased]


def _methods(rows: pd.DataFrame) -> str:
    named = [labels.method(*pair) for pair in zip(rows.decoder, rows.verifier, strict=True)]
    return ", ".join(f"{method} ({named.count(method)})" for method in dict.fromkeys(named))


def gain(measured: Measured, figures: pd.DataFrame) -> Fact:
    """ResiSpec's gain over SpecInfer's rule in Table 1. figures: the paper's."""
    label, rows = "ResiSpec's accepted length over SpecInfer's", measured.of_resispec("table1", GAIN)
    if rows.empty:
        return measured.unknown(label, "table1")
    found, biased = between(rows.value), int((rows.verdict == Finding.BIASED).sum())
    sentence = f"{found} times over {len(rows)} settings; the paper has {between(figures[GAIN])}."
    lossy = f" Audited as biased: {biased} of {len(rows)} rows, so this is no gain of a lossless method."
    sentence += lossy if biased else ""
    if len(speed := measured.of_resispec("table1", "speedup")):
        sentence += (
            f" Tokens a second: {between(speed.value)} times; the paper has {between(figures.speedup)}."
        )
    return Fact(label, f"{found}×", sentence, ("table1",), Finding.BIASED if biased else "")


def best_unbiased(measured: Measured) -> Fact:
    """The highest gain of a row without a bias seen, its ceiling, and what its method gains elsewhere."""
    label = "Best gain without a bias seen"
    rows = pd.concat([measured.rows(name, GAIN) for name in BEYOND_THE_PAPER], ignore_index=True)
    rows = rows[rows.verdict == Finding.NO_BIAS_SEEN]
    if rows.empty:
        return measured.unknown(label, BEYOND_THE_PAPER[0])
    best, method = rows.loc[rows.value.idxmax()], ["artefact", "decoder", "tree", "verifier"]
    alike = rows[(rows[method] == best[method]).all(axis=1)]
    named = f"{labels.method(best.decoder, best.verifier)}, {labels.name('tree', best.tree)}"
    sentence = f"{named}: {between(alike.value)} times over {len(alike)} settings."
    length, ceiling = (
        interval_of(measured.rows(best.artefact, name), best.cell_id) for name in (LENGTH, CEILING)
    )
    sentence += f" At its best it emits {labels.interval(length, SPEC)} tokens a step"
    if ceiling.value == ceiling.value:
        sentence += f"; no exact verifier emits more than {labels.interval(ceiling, SPEC)} on such trees"
    value = f"{labels.number(best.value, SPEC)}×"
    return Fact(label, value, f"{sentence}.", (best.artefact,), Finding.NO_BIAS_SEEN)


def above_ceiling(measured: Measured) -> Fact:
    """Whether ResiSpec emits more than any exact rule could on the same trees, intervals apart."""
    label = "ResiSpec above the ceiling of every exact verifier"
    lengths, ceilings = measured.of_resispec("frontier", LENGTH), measured.rows("frontier", CEILING)
    rows = lengths.merge(ceilings, on="cell_id", suffixes=("", "_ceiling"))
    if rows.empty:
        return measured.unknown(label, "frontier")
    above = int((rows.lower > rows.upper_ceiling).sum())
    sentence = (
        f"In {above} of {len(rows)} settings its accepted length lies above what the best exact verifier "
        f"could have on the same trees, intervals apart: {between(rows.value)} tokens a step beside ceilings "
        f"of {between(rows.value_ceiling)}."
    )
    return Fact(label, f"{above} of {len(rows)}", sentence, ("frontier",), Finding.BIASED if above else "")


def own_check(measured: Measured) -> Fact:
    """The paper's own check of exactness beside its control and the audited deviation."""
    label = "The paper's own check, and a random proxy in it"
    control = measured.rows("table4", "random_proxy_kl")
    kl, far = (measured.of_resispec("table4", name) for name in ("paper_kl", "total_variation_z"))
    if kl.empty or control.empty:
        return measured.unknown(label, "table4")
    sentence = (
        f"Its divergence is {between(kl.value, '.1e')} for ResiSpec here and {between(control.value, '.1e')} "
        "for proxies drawn at random, which know neither model: it measures rounding."
    )
    if len(far):
        off = f"{between(far.value, '.0f')} standard errors off"
        sentence += f" The audit of these laws finds ResiSpec {off}."
    value = f"{labels.number(kl.value.max(), '.0e')} and {labels.number(control.value.max(), '.0e')}"
    return Fact(label, value, sentence, ("table4",))


def between(values: pd.Series, spec: str = SPEC) -> str:
    """The range of measured numbers, as printed: "1.43–1.64"."""
    low, high = (labels.number(float(value), spec) for value in (values.min(), values.max()))
    return low if low == high else f"{low}–{high}"


def interval_of(rows: pd.DataFrame, cell_id: str) -> Interval:
    """The number of one cell; NaN where it has none."""
    cell = rows[rows.cell_id == cell_id]
    return ABSENT if cell.empty else Interval(*cell.iloc[0][["value", "lower", "upper"]])


def _picture(measured: Measured) -> tuple[str, tuple[Bar, ...]]:
    """The first setting in which ResiSpec was measured, the hottest first, and its accepted lengths."""
    for artefact in ("frontier", "table1"):
        lengths, ceilings = measured.rows(artefact, LENGTH), measured.rows(artefact, CEILING)
        if is_resispec(lengths).any():
            here = lengths[is_resispec(lengths)].iloc[0]
            columns = list(lengths)
            labelled = columns[columns.index("cell_id") + 1 : columns.index("status")]
            more = [key for key in labelled if key not in LABELS]
            alike = lengths[(lengths[[*SETTING, *more]] == here[[*SETTING, *more]]).all(axis=1)]
            rows = list(_compared(here, alike, ceilings))
            longest = max(length.value for _, length, _ in rows)
            bars = [
                Bar(name, labels.interval(length, SPEC), length.value / longest, kind)
                for name, length, kind in rows
            ]
            words = {key: labels.text(key, here[key]) for key in ("pair", "dataset", "temperature", *more)}
            named = [f"{labels.header(key)} = {words[key]}" for key in ("temperature", *more)]
            return ", ".join([words["pair"], words["dataset"], *named]), tuple(bars)
    return "", ()


def _compared(
    own: pd.Series, rows: pd.DataFrame, ceilings: pd.DataFrame
) -> Iterator[tuple[str, Interval, str]]:
    """The standard rule and ResiSpec on one tree, the best others on it and on any, and the ceilings.

    The others are those in which no bias was seen. own: ResiSpec's row. rows: the lengths of its setting.
    ceilings: of all settings.
    """
    is_on_tree = (rows.tree == own.tree) & (rows.decoder == own.decoder)
    is_other = (rows.verdict == Finding.NO_BIAS_SEEN) & (rows.verifier != "standard")
    chosen = pd.concat([
        rows[is_on_tree & (rows.verifier == "standard")].head(1),
        own.to_frame().T,
        *(rows[which].nlargest(1, "value") for which in (is_other & is_on_tree, is_other)),
    ])  # fmt: skip
    for row in chosen.drop_duplicates("cell_id").to_dict("records"):
        name = f"{labels.method(row['decoder'], row['verifier'])}, {labels.name('tree', row['tree'])}"
        yield name, Interval(row["value"], row["lower"], row["upper"]), row["verdict"]
    for row in chosen.drop_duplicates(["decoder", "tree"]).to_dict("records"):
        ceiling = interval_of(ceilings, row["cell_id"])
        if ceiling.value == ceiling.value:
            yield f"Ceiling of exact verifiers, {labels.name('tree', row['tree'])}", ceiling, "ceiling"
