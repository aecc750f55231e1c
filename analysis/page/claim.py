"""The paper's claim, the verdict that follows from the measured rows, and one setting as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import labels, paper
from analysis.load import SETTING
from analysis.page import facts
from analysis.page.facts import CEILING, GAIN, LENGTH, SPEC, Fact, Measured
from analysis.page.sections import Section
from analysis.stats import Interval
from resispec.audit.verdict import Finding


@dataclass(frozen=True)
class Bar:
    """One accepted length of the picture. share: of the longest bar. kind: a `Finding`, "ceiling" or ""."""

    label: str
    text: str
    share: float
    kind: str


@dataclass(frozen=True)
class Verdict:
    """What a reader sees first.

    claim: what the paper says, Markdown. headline, finding: what the audits say of it. setting, bars: the
    accepted lengths of one setting; no bars where it is not measured.
    """

    claim: str
    headline: str
    finding: str
    facts: tuple[Fact, ...]
    setting: str
    bars: tuple[Bar, ...]


def judge(sections: Sequence[Section]) -> Verdict:
    """What the artefacts' first tables say of the claim."""
    measured = Measured(
        {section.name: section.made.tables[0].frame for section in sections if section.made},
        {section.name: section.make for section in sections},
    )
    figures = paper.read("table1", (GAIN, "speedup"))
    claim = (
        "The paper *ResiSpec* (arXiv 2608.24411) presents a verifier for trees of drafted tokens that it "
        f"calls lossless, with up to {figures[GAIN].max():.2f} times the accepted length of SpecInfer and up "
        f"to {figures.speedup.max():.2f} times its throughput."
    )
    found = (
        facts.losslessness(measured),
        facts.gain(measured, figures),
        facts.above_ceiling(measured),
        facts.best_exact(measured),
        facts.others(measured),
        facts.own_check(measured),
    )
    headline = {
        Finding.BIASED: "ResiSpec is not lossless: its output does not have the target's law",
        Finding.EXACT: "No bias of ResiSpec was found in the rows measured so far",
        "": "No audit of ResiSpec is decided here yet",
    }[found[0].finding]
    setting, bars = _picture(measured)
    return Verdict(claim, headline, str(found[0].finding), found, setting, bars)


def _picture(measured: Measured) -> tuple[str, tuple[Bar, ...]]:
    """The first setting, the hottest first, in which ResiSpec was measured, with what it is compared to."""
    for artefact in ("frontier", "table1"):
        lengths, ceilings = measured.rows(artefact, LENGTH), measured.rows(artefact, CEILING)
        own = facts.of_resispec(lengths)
        if len(own):
            here = own.iloc[0]
            alike = lengths[(lengths[list(SETTING)] == here[list(SETTING)]).all(axis=1)]
            rows = list(_compared(here, alike, ceilings))
            longest = max(found.value for _, found, _ in rows)
            bars = [
                Bar(name, labels.interval(found, SPEC), found.value / longest, kind)
                for name, found, kind in rows
            ]
            words = [labels.text(key, here[key]) for key in ("pair", "dataset")]
            return ", ".join([*words, f"T = {here.temperature:g}"]), tuple(bars)
    return "", ()


def _compared(
    own: pd.Series, rows: pd.DataFrame, ceilings: pd.DataFrame
) -> Iterator[tuple[str, Interval, str]]:
    """The standard rule and ResiSpec on one tree, the best exact rows on it and on any, and their ceilings.

    own: ResiSpec's row. rows: the lengths of its setting. ceilings: of all settings.
    """
    on_tree = rows[(rows.tree == own.tree) & (rows.decoder == own.decoder)]
    exact = rows[(rows.verdict == Finding.EXACT) & (rows.verifier != "standard")]
    exact_on_tree = exact[exact.index.isin(on_tree.index)]
    chosen = [on_tree[on_tree.verifier == "standard"].head(1), own.to_frame().T]
    chosen += [best.nlargest(1, "value") for best in (exact_on_tree, exact)]
    for row in pd.concat(chosen).drop_duplicates("cell_id").to_dict("records"):
        name = f"{labels.method(row['decoder'], row['verifier'])}, {labels.name('tree', row['tree'])}"
        yield name, Interval(row["value"], row["lower"], row["upper"]), row["verdict"]
    trees = pd.concat(chosen).drop_duplicates(["decoder", "tree"]).to_dict("records")
    for row in trees:
        found = facts.interval_of(ceilings, row["cell_id"])
        if found.value == found.value:
            yield f"Ceiling of exact verifiers, {labels.name('tree', row['tree'])}", found, "ceiling"
