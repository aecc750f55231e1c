"""What the audits of a table's rows say, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis import labels
from analysis.audits import QUANTITIES
from analysis.figures import CEILING
from analysis.load import LABELS, SETTING
from analysis.report import key_texts, split_keys
from analysis.stats import Interval
from resispec.audit.verdict import LIMIT, Finding

LENGTHS = ("expected_accepted_length", "accepted_so_far")
"""Quantities whose ceilings are rows of the same frame, of the verifier CEILING."""
COUNTED = ("num_candidates", "sibling")
"""What such rows are numbered by."""
NUMBERS = ("cell_id", "verifier", "value", "lower", "upper", "paper", "status", "reason")
"""Columns in which a row and its ceiling may differ."""


@dataclass(frozen=True)
class Said:
    """What an audit says of a table's row. row: what names it. verdict: a `Finding`, or the audit's state."""

    row: str
    verdict: str
    sentence: str


def said(frame: pd.DataFrame) -> list[Said]:
    """What a table's long frame says of the exactness of its rows, in their order; it may say nothing.

    It may hold verdicts of audit cells, total variations from the target's law, or ceilings of exact rules.
    """
    if not {"cell_id", "status", "quantity"} <= set(frame):
        return []
    quantities = set(frame.quantity)
    if set(QUANTITIES) <= quantities and (frame.verdict != "").any():
        return list(_of_audits(frame))
    if "total_variation_z" in quantities:
        return list(_of_variations(frame))
    if quantities & set(LENGTHS) and CEILING in set(frame.verifier):
        return list(_of_ceilings(frame))
    return []


def summary(found: Sequence[Said]) -> str:
    """How many rows are what: "6 biased, 12 exact"."""
    return ", ".join(
        f"{count} {verdict}" for verdict, count in sorted(Counter(one.verdict for one in found).items())
    )


def keys_of(frame: pd.DataFrame) -> list[str]:
    """The labels of a long frame: its columns between the cell's name and its status."""
    columns = list(frame.columns)
    return columns[columns.index("cell_id") + 1 : columns.index("status")]


def titles(cells: pd.DataFrame) -> list[str]:
    """What names each cell among others: "T = 1, Python code, SpecInfer + ResiSpec". cells: their labels."""
    more = [name for name in cells if name not in LABELS]
    last = ("tree", "method") if "decoder" in cells else ("verifier",)
    varying, _ = split_keys(cells.assign(method=""), (*SETTING, *more, *last))
    named = []
    for cell in cells.to_dict("records"):
        texts = dict(zip(varying, key_texts(cell, varying), strict=True))
        texts |= {
            key: f"{labels.header(key)} = {texts[key]}" for key in varying if key in ("temperature", *more)
        }
        named.append(", ".join(text for text in texts.values() if text != labels.ABSENT))
    return named


def _cells(frame: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any], dict[str, Interval]]]:
    """Of every cell of a long frame: what names it, its first row, and its quantities."""
    keys = keys_of(frame)
    groups = [rows for _, rows in frame.groupby(["cell_id", *keys], sort=False)]
    cells = pd.DataFrame([rows[keys].iloc[0] for rows in groups])
    for title, rows in zip(titles(cells), groups, strict=True):
        found = {
            row["quantity"]: Interval(row["value"], row["lower"], row["upper"])
            for row in rows.to_dict("records")
        }
        yield title, rows.iloc[0].to_dict(), found


def _of_audits(frame: pd.DataFrame) -> Iterator[Said]:
    for title, row, found in _cells(frame):
        if row.get("decoder") == "autoregressive" and not row["verdict"]:
            continue  # it samples the target's own law
        yield Said(title, row["verdict"] or "not audited", _audit_sentence(row["verdict"], found))


def _audit_sentence(verdict: str, found: Mapping[str, Interval]) -> str:
    tokens = f"{labels.number(found['audited_tokens'].value, ',.0f')} tokens"
    surprisal, overdraft = found["z_surprisal"].value, found["z_overdraft"].value
    scores = f"surprisal {labels.number(surprisal, '.1f')}, overdraft {labels.number(overdraft, '.1f')}"
    if verdict == Finding.EXACT:
        return (
            f"No deviation from the target's law in {tokens}: {scores} standard errors, all within {LIMIT:g}."
        )
    if verdict == Finding.UNDECIDED:
        return (
            f"No bias found, but too little evidence in {tokens} to call it exact: {scores} standard errors."
        )
    if verdict != Finding.BIASED:
        return f"No verdict: {verdict}." if verdict else "No audit was asked for."
    reasons = []
    if overdraft > LIMIT:
        reasons.append("tokens that the draft overrates come out too often")
    if abs(surprisal) > LIMIT:
        rarer = "less" if surprisal > 0 else "more"
        reasons.append(f"its tokens are {rarer} likely under the target than the target's own")
    because = " and ".join(reasons) or "a statistic lies too far out"
    return (
        f"Not the target's law: {because} ({scores} standard errors over {tokens}; beyond {LIMIT:g} is bias)."
    )


def _of_variations(frame: pd.DataFrame) -> Iterator[Said]:
    for title, row, found in _cells(frame):
        variation, z = found["total_variation"], found["total_variation_z"].value
        amount = (
            f"total variation {labels.interval(variation, '.3f')}, {labels.number(z, '.1f')} standard errors"
        )
        if row["status"] != "done":
            yield Said(title, row["status"], "Not measured.")
        elif z > LIMIT:
            yield Said(title, Finding.BIASED, f"Not the target's law: {amount} above what an exact rule has.")
        else:
            yield Said(title, "no bias seen", f"No deviation at a node: {amount}, within {LIMIT:g}.")


def _of_ceilings(frame: pd.DataFrame) -> Iterator[Said]:
    """Which rows lie above the most that an exact rule can reach, intervals apart."""
    lengths = frame[frame.quantity.isin(LENGTHS) | (frame.status != "done")]
    [counted] = [name for name in COUNTED if name in frame]
    alike = [name for name in frame if name not in (*NUMBERS, "tested_share", "num_nodes")]
    ceilings = lengths[lengths.verifier == CEILING].set_index(alike).upper.to_dict()
    own = lengths[lengths.verifier != CEILING]
    groups = [name for name in (*keys_of(frame), "arrangement") if name in frame]
    lines = [rows for _, rows in own.groupby(groups, sort=False, dropna=False)]
    for title, rows in zip(
        titles(pd.DataFrame([rows[groups].iloc[0] for rows in lines])), lines, strict=True
    ):
        if rows.status.iloc[0] != "done":
            yield Said(title, rows.status.iloc[0], "Not measured.")
            continue
        above = [
            row[counted]
            for row in rows.to_dict("records")
            if row["lower"] > ceilings.get(tuple(row[key] for key in alike), row["lower"])
        ]
        where = f"{labels.header(counted)} = {', '.join(f'{number:g}' for number in above)}"
        if above:
            yield Said(title, Finding.BIASED, f"Above what any exact rule can reach at {where}.")
        else:
            yield Said(title, "no bias seen", "Nowhere above what an exact rule can reach.")
