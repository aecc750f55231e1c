"""What the measured rows say of the paper's claim: sentences around numbers, none of which is fixed.

A fact whose rows are not there says so, and names the command that measures them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from analysis import labels
from analysis.metrics import ACCEPTED_LENGTH
from analysis.page.sections import titled
from analysis.stats import Interval
from resispec.audit.verdict import LIMIT, Finding

LENGTH, GAIN, CEILING = ACCEPTED_LENGTH.name, "accepted_length_gain", "ceiling"
SPEC = ACCEPTED_LENGTH.spec
UNKNOWN = "not measured yet"
DECIDED = [Finding.EXACT, Finding.BIASED]
COLUMNS = (
    "cell_id",
    "decoder",
    "tree",
    "verifier",
    "quantity",
    "value",
    "lower",
    "upper",
    "verdict",
    "artefact",
)


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
class Measured:
    """The long frames of the artefacts' first tables, and the commands that measure them, by name."""

    frames: Mapping[str, pd.DataFrame]
    makes: Mapping[str, str]

    def rows(self, artefact: str, quantity: str) -> pd.DataFrame:
        """The rows of an artefact that have a number for a quantity; without any, an empty frame."""
        frame = self.frames.get(artefact)
        if frame is None or "quantity" not in frame:
            return pd.DataFrame(columns=list(COLUMNS))
        return frame[(frame.quantity == quantity) & frame.value.notna()]

    def audited(self) -> pd.DataFrame:
        """A row for every cell that decodes and has an audit, each once, with its artefact."""
        rows = [
            frame[(frame.quantity == LENGTH) & (frame.verdict != "")].assign(artefact=name)
            for name, frame in self.frames.items()
            if {"verdict", "quantity"} <= set(frame)
        ]
        return pd.concat([pd.DataFrame(columns=list(COLUMNS)), *rows]).drop_duplicates("cell_id")

    def unknown(self, label: str, artefact: str) -> Fact:
        """The fact that there are no rows."""
        make = self.makes.get(artefact)
        said = f"{titled(artefact)} has no such rows yet; `{make}` measures them." if make else ""
        return Fact(label, UNKNOWN, said, (artefact,) if make else ())


def of_resispec(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose verifier is ResiSpec, with whatever options."""
    return rows[_is_resispec(rows)]


def _is_resispec(rows: pd.DataFrame) -> pd.Series:
    return (
        rows.verifier.astype(str).str.partition("(")[0] == "resispec" if len(rows) else pd.Series(dtype=bool)
    )


def losslessness(measured: Measured) -> Fact:
    """How many of ResiSpec's audited rows are biased."""
    label, own = "ResiSpec's rows that audit as biased", of_resispec(measured.audited())
    decided = own[own.verdict.isin(DECIDED)]
    if decided.empty:
        return measured.unknown(label, "table1")
    biased, exact = decided[decided.verdict == Finding.BIASED], decided[decided.verdict == Finding.EXACT]
    sentence = (
        f"Of {len(decided)} rows with ResiSpec whose audit is decided, {len(biased)} do not have the "
        f"target's law: a z-score of their tokens lies beyond {LIMIT:g} standard errors."
    )
    sentence += f" The others are {_methods(exact)}." if len(exact) and len(biased) else ""
    finding = Finding.BIASED if len(biased) else Finding.EXACT
    return Fact(label, f"{len(biased)} of {len(decided)}", sentence, _artefacts(decided), finding)


def others(measured: Measured) -> Fact:
    """How many of the other audited rows are exact."""
    audited = measured.audited()
    rows = audited[~_is_resispec(audited)] if len(audited) else audited
    label, decided = "Other rows that audit as exact", rows[rows.verdict.isin(DECIDED)]
    if decided.empty:
        return measured.unknown(label, "table1")
    biased, exact = decided[decided.verdict == Finding.BIASED], decided[decided.verdict == Finding.EXACT]
    sentence = (
        f"The same audit finds no bias in {len(exact)} of {len(decided)} decided rows without ResiSpec."
    )
    sentence += f" It finds one in {_methods(biased)}." if len(biased) else ""
    undecided = int((rows.verdict == Finding.UNDECIDED).sum())
    sentence += f" Too few tokens decide {undecided} more." if undecided else ""
    return Fact(label, f"{len(exact)} of {len(decided)}", sentence, _artefacts(decided), Finding.EXACT)


def _methods(rows: pd.DataFrame) -> str:
    named = [labels.method(*pair) for pair in zip(rows.decoder, rows.verifier, strict=True)]
    return ", ".join(f"{method} ({named.count(method)})" for method in dict.fromkeys(named))


def _artefacts(rows: pd.DataFrame) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rows.artefact))


def gain(measured: Measured, paper: pd.DataFrame) -> Fact:
    """What ResiSpec gains over SpecInfer's rule in Table 1. paper: its figures."""
    label, rows = "ResiSpec's accepted length over SpecInfer's", of_resispec(measured.rows("table1", GAIN))
    if rows.empty:
        return measured.unknown(label, "table1")
    found, biased = between(rows.value), int((rows.verdict == Finding.BIASED).sum())
    sentence = f"{found} times over {len(rows)} settings; the paper has {between(paper[GAIN])}."
    if biased:
        sentence += (
            f" Audited as biased: {biased} of {len(rows)} rows, so this is no gain of a lossless method."
        )
    speed = of_resispec(measured.rows("table1", "speedup"))
    if len(speed):
        sentence += f" Tokens a second: {between(speed.value)} times; the paper has {between(paper.speedup)}."
    return Fact(label, f"{found}×", sentence, ("table1",), Finding.BIASED if biased else "")


def best_exact(measured: Measured) -> Fact:
    """The highest gain of a row that audits as exact, its ceiling, and what its method gains elsewhere."""
    label, rows = "Best gain of a verifier that audits as exact", measured.rows("frontier", GAIN)
    rows = rows[rows.verdict == Finding.EXACT]
    if rows.empty:
        return measured.unknown(label, "frontier")
    best, method = rows.loc[rows.value.idxmax()], ["decoder", "tree", "verifier"]
    alike = rows[(rows[method] == best[method]).all(axis=1)]
    named = f"{labels.method(best.decoder, best.verifier)}, {labels.name('tree', best.tree)}"
    sentence = f"{named}: {between(alike.value)} times over {len(alike)} settings."
    own = {name: interval_of(measured.rows("frontier", name), best.cell_id) for name in (LENGTH, CEILING)}
    sentence += f" At its best it emits {labels.interval(own[LENGTH], SPEC)} tokens a step"
    if own[CEILING].value == own[CEILING].value:
        sentence += f"; no exact verifier emits more than {labels.interval(own[CEILING], SPEC)} on such trees"
    return Fact(label, f"{labels.number(best.value, SPEC)}×", f"{sentence}.", ("frontier",), Finding.EXACT)


def above_ceiling(measured: Measured) -> Fact:
    """Whether ResiSpec emits more than any exact rule could on the same trees, intervals apart."""
    label = "ResiSpec above the ceiling of every exact verifier"
    ceilings = measured.rows("frontier", CEILING)
    rows = of_resispec(measured.rows("frontier", LENGTH)).merge(
        ceilings, on="cell_id", suffixes=("", "_ceiling")
    )
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
    label, control = (
        "The paper's own check, and a random proxy in it",
        measured.rows("table4", "random_proxy_kl"),
    )
    kl, far = (of_resispec(measured.rows("table4", name)) for name in ("paper_kl", "total_variation_z"))
    if kl.empty or control.empty:
        return measured.unknown(label, "table4")
    sentence = (
        f"Its divergence is {between(kl.value, '.1e')} for ResiSpec here and {between(control.value, '.1e')} "
        "for proxies drawn at random, which know neither model: it measures rounding."
    )
    if len(far):
        sentence += (
            f" The audit of these laws finds ResiSpec {between(far.value, '.0f')} standard errors off."
        )
    value = f"{labels.number(kl.value.max(), '.0e')} and {labels.number(control.value.max(), '.0e')}"
    return Fact(label, value, sentence, ("table4",))


def between(values: pd.Series, spec: str = SPEC) -> str:
    """The range of measured numbers, as printed: "1.43–1.64"."""
    low, high = (labels.number(float(value), spec) for value in (values.min(), values.max()))
    return low if low == high else f"{low}–{high}"


def interval_of(rows: pd.DataFrame, cell_id: str) -> Interval:
    """The number of one cell; NaN where it has none."""
    own = rows[rows.cell_id == cell_id]
    return Interval(float("nan")) if own.empty else Interval(*own.iloc[0][["value", "lower", "upper"]])
