"""Our published numbers, results/published/PROFILE/, and whether a table that was made here agrees with them.

Two accepted lengths agree when their 95 % bootstrap intervals overlap. An interval over fewer than
MIN_PROMPTS prompts is too narrow for that, so such rows are not compared; nor are times, which belong to a
machine. Two verdicts agree when they are the same; an undecided one is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import labels
from analysis.load import LABELS
from analysis.report import Table
from analysis.stats import Interval
from resispec.errors import InvalidInput, first_line

FOLDER = Path(__file__).resolve().parent.parent / "results" / "published"
MIN_PROMPTS = 8
OPENING = "Compared with "
"""How the note of a comparison begins, so that it can be left out of what is published itself."""
DECIDED = ("exact", "biased")


@dataclass(frozen=True)
class Compared:
    """Which rows are compared. name: in the plural. keys: columns that, with the labels, tell rows apart."""

    quantity: str
    name: str
    keys: tuple[str, ...] = ()
    spec: str = ".2f"


ACCEPTED_LENGTHS = Compared("accepted_length", "accepted lengths")


@dataclass(frozen=True)
class Agreement:
    """notes: below the table. summary: the last line of the command."""

    notes: tuple[str, ...]
    summary: str


def compare(table: Table, profile: str, compared: Compared, folder: Path | None = None) -> Agreement:
    """Compare a table's rows with the published ones of the same labels.

    Raises InvalidInput, one line, when the published file cannot be read.
    """
    path = (folder or FOLDER) / profile / f"{table.stem}.csv"
    if not path.is_file():
        return Agreement((), f"nothing is published for {table.stem} of profile {profile}")
    own, theirs = _rows(table.frame, compared), _rows(_read(path), compared)
    keys = [name for name in LABELS + compared.keys if name in own and name in theirs]
    by_keys: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in theirs.to_dict("records"):
        by_keys.setdefault(_labels(row, keys), []).append(row)
    tally = _Tally()
    for row in own.to_dict("records"):
        tally.add(row, by_keys.get(_labels(row, keys), []), compared)
    verdicts = "verdicts" if tally.numbers else "verdicts agree"
    agreeing = [
        f"{sum(found)} of {len(found)} {name}"
        for found, name in ((tally.numbers, f"{compared.name} agree"), (tally.verdicts, verdicts))
        if found
    ]
    said = (", ".join(agreeing) or "nothing in it can be compared") + _listed(tally.left_out)
    where = f"results/published/{profile}/{table.stem}.csv"
    differing = f" Differing: {'; '.join(tally.differing)}." if tally.differing else ""
    rule = " Two numbers agree when their intervals overlap, and times are not compared."
    return Agreement((f"{OPENING}{where}: {said}.{rule}{differing}",), f"{OPENING}{where}: {said}")


class _Tally:
    """Counts what agrees. left_out: why rows were not compared, and how many."""

    def __init__(self) -> None:
        self.numbers: list[bool] = []
        self.verdicts: list[bool] = []
        self.differing: list[str] = []
        self.left_out: dict[str, int] = {}

    def add(self, row: Mapping[str, Any], matches: list[dict[str, Any]], compared: Compared) -> None:
        """Compare a row with the published rows of its labels."""
        if pd.isna(row["value"]):
            return self._leave_out("without a number here")
        if len(matches) != 1 or pd.isna(matches[0]["value"]):
            return self._leave_out("not published")
        [other] = matches
        if min(row["num_prompts"], other["num_prompts"]) < MIN_PROMPTS:
            self._leave_out(f"of fewer than {MIN_PROMPTS} prompts")
        else:
            agrees = _overlap(row, other)
            self.numbers.append(agrees)
            if not agrees:
                found, was = (labels.interval(_interval(one), compared.spec) for one in (row, other))
                self.differing.append(f"{_title(row, compared)} has {found}, published {was}")
        if row.get("verdict") in DECIDED and other.get("verdict") in DECIDED:
            self.verdicts.append(row["verdict"] == other["verdict"])
            if not self.verdicts[-1]:
                self.differing.append(
                    f"{_title(row, compared)} is {row['verdict']}, published as {other['verdict']}"
                )
        return None

    def _leave_out(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1


def _read(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"published numbers {path} cannot be read ({first_line(error)})") from error


def _rows(frame: pd.DataFrame, compared: Compared) -> pd.DataFrame:
    """The compared rows, with an empty text for a label that is empty."""
    rows = frame[frame.quantity == compared.quantity] if "quantity" in frame else frame.iloc[:0]
    names = [name for name in (*LABELS, "verdict") if name in rows]
    return rows.assign(**{name: rows[name].astype(object).where(rows[name].notna(), "") for name in names})


def _labels(row: Mapping[str, Any], keys: list[str]) -> tuple[Any, ...]:
    return tuple(row[key] if isinstance(row[key], str) else float(row[key]) for key in keys)


def _interval(row: Mapping[str, Any]) -> Interval:
    return Interval(row["value"], row["lower"], row["upper"])


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two intervals have a point in common; a number without an interval is a point."""
    (low, high), (their_low, their_high) = (
        (row["value"], row["value"]) if pd.isna(row["lower"]) else (row["lower"], row["upper"])
        for row in (one, other)
    )
    return bool(low <= their_high and their_low <= high)


def _title(row: Mapping[str, Any], compared: Compared) -> str:
    words = [labels.text(key, row[key]) for key in ("dataset", "tree") if row.get(key)]
    method = labels.method(row["decoder"], row["verifier"]) if "decoder" in row else row["verifier"]
    keys = [f"{key.replace('_', ' ')} {row[key]}" for key in compared.keys]
    return ", ".join([*words, f"T = {row['temperature']:g}", method, *keys])


def _listed(left_out: Mapping[str, int]) -> str:
    """What was not compared: " (not compared: 3 rows of fewer than 8 prompts)"."""
    if not left_out:
        return ""
    counted = [f"{count} row{'s' * (count > 1)} {why}" for why, count in left_out.items()]
    return f" (not compared: {', '.join(counted)})"
