"""Writes a long frame of measurements as CSV for programs, and as markdown and LaTeX for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis import audits, labels
from analysis.bootstrap import NUM_RESAMPLES
from analysis.load import Results
from analysis.measure import QUANTITIES
from resispec.record import write_atomically

DEFINITIONS = (
    "Accepted length: tokens emitted per forward of the target, the resampled or bonus token included (all emitted "
    "tokens over all steps). Tokens/s: emitted tokens over decoding seconds, after warm-up, without prefill.",
    f"Brackets: 95 % percentile bootstrap over prompts ({NUM_RESAMPLES:,} resamples), paired where two cells are "
    "compared; they cover the variation between prompts, not between runs.",
)
AUDITED = (
    "Audit: is the output's law the target's? Two z-scores over the tokens of a separate run with the same prompts and seeds "
    "(surprisal and overdraft, see docs/exactness.md); beyond 4 is biased, too few tokens are undecided."
)
_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "…": r"\ldots{}", "×": r"$\times$", "·": r"$\cdot$",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One table of an artefact.

    stem: the artefact's name, and its files'. frame: long, from `analysis.measure.measure`, in the order of its rows.
    keys: columns that name a row, "method" being decoder and verifier; those that never change go to the caption.
    caption: what the table compares. notes: lines below it.
    """

    stem: str
    frame: pd.DataFrame
    keys: tuple[str, ...]
    caption: str
    notes: tuple[str, ...]
    quantities: tuple[str, ...] = QUANTITIES


def footer(results: Results, profile: str, command: str) -> tuple[str, ...]:
    """The lines that every table ends with: where its numbers come from, what they mean, and what is not there."""
    done = results.cells[results.cells.status == "done"]
    sizes = sorted(results.prompts.groupby("cell_id").size().unique())
    absent = len(results.cells) - len(done)
    audited = (AUDITED,) if len(results.audits) else ()
    source = (
        f"Profile: {profile}. Device: {_listed(done.device)}. Prompts per cell: {_listed(sizes)}. "
        f"Commit: {_listed(done.commit)}. Made by: {command}."
    )
    gap = f"Incomplete: {absent} of {len(results.cells)} cells are missing, failed or interrupted."
    return (source, *DEFINITIONS, *audited, *([gap] if absent else []))


def write(table: Table, folder: Path) -> list[Path]:
    """Write `folder/stem.csv`, `.md` and `.tex`, each atomically, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"csv": table.frame.to_csv(index=False), "md": markdown(table), "tex": latex(table)}
    paths = []
    for suffix, text in texts.items():
        paths.append(folder / f"{table.stem}.{suffix}")
        write_atomically(paths[-1], text)
    return paths


def display(table: Table) -> pd.DataFrame:
    """The table as printed: one row per cell, with the keys that vary, and each quantity with the paper's beside it.

    A cell that is not done shows its status, and its reason, as its first quantity.
    """
    frame, varying = table.frame, _varying(table)
    with_paper = {quantity for quantity, rows in frame.groupby("quantity") if rows.paper_low.notna().any()}
    has_audits = bool((frame.verdict != "").any())
    lines = []
    for _, rows in frame.groupby("cell_id", sort=False):
        first = rows.iloc[0]
        by_quantity = rows.set_index("quantity")
        line = [_key(first, key) for key in varying]
        for quantity in table.quantities:
            number = by_quantity.loc[quantity]
            line.append(labels.interval(quantity, number.value, number.lower, number.upper))
            if quantity in with_paper:
                line.append(labels.published(quantity, number.paper_low, number.paper_high))
        if has_audits:
            line.append(
                audits.text(by_quantity.value[list(audits.QUANTITIES)].to_dict() | {"verdict": first.verdict})
                or labels.ABSENT
            )
        if first.status != "done":
            line[len(varying)] = _shortened(
                f"{first.status}: {first.reason}" if first.reason else first.status
            )
        lines.append(line)
    header = [labels.COLUMNS[key].label for key in varying]
    for quantity in table.quantities:
        header += [labels.COLUMNS[quantity].label] + ["(paper)"] * (quantity in with_paper)
    return pd.DataFrame(lines, columns=header + ["Audit"] * has_audits)


def markdown(table: Table) -> str:
    """The table for people and terminals, padded."""
    shown = display(table)
    rows = [list(shown.columns), *shown.to_numpy().tolist()]
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n\n".join([f"**{caption(table)}**", "\n".join(lines), *table.notes]) + "\n"


def latex(table: Table) -> str:
    """The table for a paper; needs booktabs and graphicx. Space separates the groups that the first keys make."""
    shown, num_keys = display(table), len(_varying(table))
    body: list[str] = []
    previous: list[str] | None = None
    for row in shown.to_numpy().tolist():
        group = row[: max(num_keys - 1, 0)]
        if previous is not None and group != previous:
            body.append(r"\addlinespace")
        previous = group
        body.append(_tex_row(row))
    columns = "l" * num_keys + "r" * (len(shown.columns) - num_keys)
    return "\n".join([
        r"\begin{table*}[t]", r"\centering", rf"\caption{{{escape(caption(table))}}}", rf"\label{{tab:{table.stem}}}",
        r"\resizebox{\textwidth}{!}{%", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _tex_row(list(shown.columns)),
        r"\midrule", *body, r"\bottomrule", r"\end{tabular}}",
        r"\par\smallskip", r"\begin{minipage}{\textwidth}\footnotesize",
        *(escape(note) + r"\par" for note in table.notes), r"\end{minipage}", r"\end{table*}", "",
    ])  # fmt: skip


def caption(table: Table) -> str:
    """The caption and the keys that are the same in every row."""
    fixed = [key for key in table.keys if key not in _varying(table)]
    values = {key: next((value for value in table.frame.get(key, ()) if value != ""), "") for key in fixed}
    parts = [
        f"{labels.COLUMNS[key].label}: {labels.text(key, value)}"
        for key, value in values.items()
        if value != ""
    ]
    return table.caption + (f" {', '.join(parts)}." if parts else "")


def escape(text: str) -> str:
    """Text as LaTeX source."""
    return "".join(_TEX.get(character, character) for character in text)


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"


def _varying(table: Table) -> list[str]:
    """The keys that tell rows apart; "method" always does. An empty label (autoregressive has no tree) is no value."""
    values = {key: {value for value in table.frame.get(key, ()) if value != ""} for key in table.keys}
    return [key for key in table.keys if key == "method" or len(values[key]) > 1]


def _shortened(text: str, length: int = 60) -> str:
    """A reason that keeps the table readable; the CSV has all of it."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _key(row: pd.Series, key: str) -> str:
    return labels.method(row.decoder, row.verifier) if key == "method" else labels.text(key, row[key])


def _listed(values: Sequence[object] | pd.Series) -> str:
    """Distinct values in their order, or "none"."""
    return ", ".join(dict.fromkeys(map(str, values))) or "none"
