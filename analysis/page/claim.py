"""The paper's claim, the verdict that follows from the measured rows, and one setting as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import labels, paper
from analysis.load import LABELS, SETTING
from analysis.page import facts, words
from analysis.page.facts import CEILING, GAIN, LENGTH, SPEC, Fact, Measured
from analysis.page.sections import Section
from analysis.stats import Interval
from resispec.audit.verdict import Finding

CLAIMED = {"table1": (GAIN, "speedup"), "table3": ("speedup",)}
"""The paper's tables whose figures are its claim, and their columns."""


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
    figures, on_trees = (paper.read(name, names) for name, names in CLAIMED.items())
    claim = (
        "The paper *ResiSpec* (arXiv 2608.24411) presents a verifier for trees of drafted tokens that it "
        f"calls lossless, with up to {figures[GAIN].max():.2f} times the accepted length of SpecInfer and "
        f"{figures.speedup.max():.2f} times its throughput in its Table 1, and up to "
        f"{on_trees.speedup.max():.2f} times on other trees (Table 3)."
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
            more = [key for key in words.keys_of(lengths) if key not in LABELS]
            setting = [*SETTING, *more]
            alike = lengths[(lengths[setting] == here[setting]).all(axis=1)]
            rows = list(_compared(here, alike, ceilings))
            longest = max(found.value for _, found, _ in rows)
            bars = [
                Bar(name, labels.interval(found, SPEC), found.value / longest, kind)
                for name, found, kind in rows
            ]
            named = [labels.text(key, here[key]) for key in ("pair", "dataset")]
            named += [
                f"{labels.header(key)} = {labels.text(key, here[key])}" for key in ("temperature", *more)
            ]
            return ", ".join(named), tuple(bars)
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
