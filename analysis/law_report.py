"""What the artefacts made of laws share: intervals, where numbers come from, and files for programs and for people."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import labels
from analysis.bootstrap import NUM_RESAMPLES, SEED, Interval, Ratio, resample
from analysis.law_load import LawResults
from analysis.report import escape
from resispec.record import write_atomically

_RATIO = Ratio("above", "below")


@dataclass(frozen=True)
class LawTable:
    """One artefact.

    stem: its files' name. frame: all numbers, long, for the CSV. shown: the printed table, its first `num_keys` columns naming
    a row. caption: what it compares. notes: lines below it.
    """

    stem: str
    frame: pd.DataFrame
    shown: pd.DataFrame
    num_keys: int
    caption: str
    notes: tuple[str, ...]


@lru_cache(maxsize=4)
def resampled(num_prompts: int) -> np.ndarray:
    """Counts (NUM_RESAMPLES, num_prompts) of the bootstrap; the same for all cells of as many prompts, so these are paired."""
    return resample(num_prompts, np.random.default_rng(SEED))


def ratio(above: Any, below: Any) -> Interval:
    """sum(above) / sum(below) with its bootstrap interval over prompts; both have one number a prompt.

    Resamples without anything to divide by are left out; NaN where the sum itself is zero.
    """
    frame = pd.DataFrame({"above": np.asarray(above, np.float64), "below": np.asarray(below, np.float64)})
    if not frame.below.sum() > 0:
        return Interval(np.nan, np.nan, np.nan)
    counts = resampled(len(frame))
    return _RATIO.interval(frame, counts[counts @ frame.below.to_numpy() > 0])


def number(value: float, spec: str) -> str:
    """A printed number; "–" for none, and no minus sign before a zero."""
    if np.isnan(value):
        return labels.ABSENT
    text = format(value, spec)
    return text if text.strip("-0.") else text.removeprefix("-")


def bracketed(interval: Interval, spec: str) -> str:
    """A number with its interval: "2.51 [2.43, 2.60]"."""
    if np.isnan(interval.lower):
        return number(interval.value, spec)
    return f"{number(interval.value, spec)} [{number(interval.lower, spec)}, {number(interval.upper, spec)}]"


def gap(cell: dict[str, Any]) -> str:
    """What is shown in place of a number of a cell that is not done."""
    text = f"{cell['status']}: {cell['reason']}" if cell["reason"] else str(cell["status"])
    return text if len(text) <= 60 else text[:59] + "…"


def footer(results: LawResults[Any], profile: str, command: str) -> tuple[str, ...]:
    """The lines that every artefact ends with: where its numbers come from, and what is not there."""
    done = results.cells[results.cells.status == "done"]
    absent = len(results.cells) - len(done)
    source = (
        f"Profile: {profile}. Device: {_listed(done.device)}. Prompts per cell: {_listed(map(len, results.rows.values()))}. "
        f"Commit: {_listed(done.commit)}. Made by: {command}."
    )
    intervals = f"Brackets: 95 % percentile bootstrap over prompts ({NUM_RESAMPLES:,} resamples)."
    missing = f"Incomplete: {absent} of {len(results.cells)} cells are missing, failed or interrupted."
    return (source, intervals, *([missing] if absent else []))


def markdown(table: LawTable) -> str:
    """The table for people and terminals, padded."""
    rows = [
        [str(cell).replace("|", "\\|") for cell in row]
        for row in (table.shown.columns, *table.shown.to_numpy().tolist())
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n\n".join([f"**{table.caption}**", "\n".join(lines), *table.notes]) + "\n"


def latex(table: LawTable) -> str:
    """The table for a paper; needs booktabs and graphicx. Space separates the groups that all keys but the last make."""
    body: list[str] = []
    previous = None
    for row in table.shown.to_numpy().tolist():
        group = row[: max(table.num_keys - 1, 0)]
        body += [r"\addlinespace"] * (previous is not None and group != previous) + [_tex_row(row)]
        previous = group
    columns = "l" * table.num_keys + "r" * (len(table.shown.columns) - table.num_keys)
    return "\n".join([
        r"\begin{table*}[t]", r"\centering", rf"\caption{{{escape(table.caption)}}}", rf"\label{{tab:{table.stem}}}",
        r"\resizebox{\textwidth}{!}{%", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _tex_row(list(table.shown.columns)),
        r"\midrule", *body, r"\bottomrule", r"\end{tabular}}",
        r"\par\smallskip", r"\begin{minipage}{\textwidth}\footnotesize",
        *(escape(note) + r"\par" for note in table.notes), r"\end{minipage}", r"\end{table*}", "",
    ])  # fmt: skip


def publish(
    table: LawTable, folder: Path, suffixes: tuple[str, ...] = ("csv", "md", "tex")
) -> tuple[str, list[Path]]:
    """Write `folder/stem.csv`, `.md` and `.tex`, each atomically; return the Markdown and the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"csv": table.frame.to_csv(index=False), "md": markdown(table), "tex": latex(table)}
    paths = [folder / f"{table.stem}.{suffix}" for suffix in suffixes]
    for suffix, path in zip(suffixes, paths, strict=True):
        write_atomically(path, texts[suffix])
    return texts["md"], paths


def _tex_row(cells: list[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"


def _listed(values: Any) -> str:
    """Distinct values in their order, or "none"."""
    return ", ".join(dict.fromkeys(map(str, values))) or "none"
