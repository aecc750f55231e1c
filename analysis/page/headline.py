"""Headline of the page: what the measured rows say of the paper's claim, a sentence and facts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from analysis import labels
from analysis.artefact import paper
from analysis.audits import METHOD, are, best_unbiased, is_biased, is_decided, of_resispec
from analysis.metrics import ACCEPTED_LENGTH, GAIN, SPEEDUP_VS_AUTOREGRESSIVE
from analysis.table import Paper
from resispec.audit.verdict import Finding

PREFERRED = ("overview", "field", "levels", "frontier", "table1")
"""Artefacts whose rows the facts are of, the first that has such rows."""
PAPERS_TREE = "d5b3"
COLUMNS = [
    *("artefact", "cell_id", "dataset", "temperature", *METHOD),
    *("quantity", "value", "lower", "upper", "verdict"),
]


@dataclass(frozen=True)
class Fact:
    """A number with its meaning. finding: a `Finding` that colours it, or "".

    rows: those that it rests on; it links to the sections of their artefacts.
    """

    label: str
    value: str
    sentence: str
    rows: pd.DataFrame
    finding: str = ""

    @property
    def artefacts(self) -> list[str]:
        """The artefacts that have the rows."""
        return list(self.rows.artefact.unique())


def joined(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The measured rows of all artefacts. frames: artefact -> the frame of its first table.

    Rows that are not one cell's are left out.
    """
    parts = [frame.assign(artefact=name) for name, frame in frames.items() if "cell_id" in frame]
    rows = pd.concat(parts or [pd.DataFrame()], ignore_index=True).reindex(columns=COLUMNS)
    return rows[rows.value.notna()].fillna({"verdict": ""})


def sentence(rows: pd.DataFrame) -> tuple[str, str]:
    """The verdict on the paper's claim in words, and as a `Finding`; "" without a decided audit."""
    verdicts = set(_audited(of_resispec(rows)).verdict)
    if any(map(is_biased, verdicts)):
        text = "ResiSpec is not lossless: its output does not have the target's law."
        return text, Finding.BIASED
    if verdicts:
        text = "No bias of ResiSpec was found in the rows measured so far."
        return text, Finding.NO_BIAS_SEEN
    return "No audit of ResiSpec is decided here yet.", ""


def facts(rows: pd.DataFrame) -> list[Fact]:
    """The facts that have been measured. rows: those of `joined`."""
    resispec = of_resispec(rows)
    others = rows.drop(resispec.index)
    found = (
        _audits("ResiSpec's rows that are biased", _audited(resispec)),
        _audits("Other rows that are biased", _audited(others)),
        _gain(rows, resispec),
        _best(others),
        _speed(others, resispec),
    )
    return [fact for fact in found if len(fact.rows)]


def between(numbers: pd.Series) -> str:
    """The range of measured numbers, as printed: "1.43–1.64"."""
    return str(Paper(numbers.min(), numbers.max()))


def _of(rows: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """The rows of a quantity in the first artefact of PREFERRED that has some."""
    found = rows[rows.quantity == quantity]
    for artefact in PREFERRED:
        if artefact in set(found.artefact):
            return found[found.artefact == artefact]
    return found[:0]


def _by_temperature(numbers: pd.DataFrame) -> tuple[str, str]:
    """The range at the highest temperature, "1.56–1.58", and those at others in a sentence."""
    groups = numbers.groupby("temperature", sort=False)
    ranges = {float(at): between(group.value) for at, group in groups}
    hottest = max(ranges, default=0.0)
    others = [f"{ranges[at]} at T = {at:g}" for at in ranges if at != hottest]
    text = f" It has {', '.join(others)}." if others else ""
    return ranges.get(hottest, ""), text


def _audited(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of accepted lengths whose verdict is decided, one a cell."""
    decided = rows[(rows.quantity == ACCEPTED_LENGTH.name) & are(is_decided, rows)]
    return decided.drop_duplicates("cell_id")


def _audits(label: str, audited: pd.DataFrame) -> Fact:
    """How many of the audited rows are biased, and of what methods the lesser part is."""
    biased = audited[are(is_biased, audited)]
    rest = audited.drop(biased.index)
    are_most = len(biased) > len(rest)
    few, opening = (rest, "No bias is seen in") if are_most else (biased, "Those of")
    counts = Counter(map(labels.method, few.decoder, few.verifier))
    methods = ", ".join(f"{method} ({count})" for method, count in counts.items())
    text = f"{opening} {methods}." if methods else ""
    finding = Finding.BIASED if are_most else Finding.NO_BIAS_SEEN
    return Fact(label, f"{len(biased)} of {len(audited)}", text, audited, finding)


def _gain(rows: pd.DataFrame, resispec: pd.DataFrame) -> Fact:
    """ResiSpec's gain beside the paper's on its tree, its lengths beside exact rules' ceilings."""
    is_papers = (resispec.tree == PAPERS_TREE) & (resispec.decoder == "specinfer")
    gains = _of(resispec[is_papers], GAIN.name)
    is_lossy = gains.verdict.map(is_biased).any()
    value, others = _by_temperature(gains)
    text = f"The paper has {between(paper('table1').accepted_length_gain)}.{others}"
    if is_lossy:
        text += " These rows are biased: it is no gain of a lossless method."
    on_frontier = rows[rows.artefact == "frontier"]
    lengths = on_frontier[on_frontier.quantity == ACCEPTED_LENGTH.name]
    ceilings = on_frontier[on_frontier.quantity == "ceiling"]
    pairs = of_resispec(lengths).merge(ceilings, on="cell_id", suffixes=("", "_ceiling"))
    above = pairs[pairs.lower > pairs.upper_ceiling]
    if len(above):
        text += (
            f" In {len(above)} of {len(pairs)} settings of the frontier its accepted length lies "
            "above what any exact verifier can have on the same tree."
        )
    label = f"ResiSpec's accepted length over SpecInfer's, {PAPERS_TREE}{_hottest(gains)}"
    return Fact(label, f"{value}×", text, gains, Finding.BIASED if is_lossy else "")


def _best(others: pd.DataFrame) -> Fact:
    """The gains of the best method without a bias seen."""
    gains = _of(others, GAIN.name)
    best = best_unbiased(gains)
    label = f"Best gain without a bias seen{_hottest(best)}"
    if best.empty:
        return Fact(label, "", "", best)
    same = gains[(gains[METHOD] == best[METHOD].iloc[0]).all(axis=1)]
    value, at_others = _by_temperature(same)
    text = f"{_name(best)}, over SpecInfer on {PAPERS_TREE}.{at_others}"
    standard = best_unbiased(gains[gains.verifier == "standard"])
    if len(standard):
        own = between(standard.value)
        text += f" The standard rule itself has {own} at T = {standard.temperature.max():g}: "
        text += f"{_name(standard)}."
    speeds = others[
        (others.quantity == SPEEDUP_VS_AUTOREGRESSIVE.name) & others.cell_id.isin(best.cell_id)
    ]
    if len(speeds):
        text += f" Its speed over no speculation: {between(speeds.value)}."
    return Fact(label, f"{value}×", text, same, Finding.NO_BIAS_SEEN)


def _name(rows: pd.DataFrame) -> str:
    return labels.method_on_tree(*rows[["decoder", "verifier", "tree"]].iloc[0])


def _hottest(rows: pd.DataFrame) -> str:
    return f", T = {rows.temperature.max():g}" if len(rows) else ""


def _speed(others: pd.DataFrame, resispec: pd.DataFrame) -> Fact:
    speeds, own = (_of(rows, SPEEDUP_VS_AUTOREGRESSIVE.name) for rows in (others, resispec))
    speeds = speeds[speeds.verdict == Finding.NO_BIAS_SEEN]
    text = "Tokens a second over those of one token at a time, in rows without a bias seen."
    if len(own):
        text += f" ResiSpec's rows have {between(own.value)}."
    return Fact("Speed, no speculation = 1", f"{between(speeds.value)}×", text, speeds)
