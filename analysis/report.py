"""One notion of a table, and its files: CSV for programs, Markdown for people and LaTeX for a paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import labels
from analysis.load import Plan, Results
from resispec.files import write_atomically

_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
    "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "…": r"\ldots{}", "×": r"$\times$", "·": r"$\cdot$",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One table.

    stem: its files' name. frame: all numbers, with all digits, for the CSV. shown: the printed table, of
    text; its first `num_keys` columns name a row. caption: what it compares. notes: lines below it, in which
    Markdown is allowed.
    """

    stem: str
    frame: pd.DataFrame
    shown: pd.DataFrame
    num_keys: int
    caption: str
    notes: tuple[str, ...] = ()


def plain(
    stem: str, frame: pd.DataFrame, caption: str, notes: Sequence[str] = (), specs: Mapping[str, str] = {}
) -> Table:
    """A table that shows a data frame as it is, column by column.

    specs: column -> how its numbers are printed; others are ".2f" for floats, and text as it is. NaN and None
    are "–". The columns before the first one of numbers name a row.
    """
    shown = pd.DataFrame(index=frame.index)
    for column in frame:
        spec = specs.get(column, ".2f" if pd.api.types.is_float_dtype(frame[column]) else "")
        shown[column] = [
            labels.ABSENT if pd.isna(value) else format(value, spec) for value in frame[column].tolist()
        ]
    is_number = [pd.api.types.is_numeric_dtype(frame[column]) for column in frame]
    num_keys = is_number.index(True) if any(is_number) else len(is_number)
    return Table(stem, frame, shown, num_keys, caption, tuple(notes))


def write(table: Table, folder: Path, suffixes: Iterable[str] = ("csv", "md", "tex")) -> list[Path]:
    """Write `folder/stem.csv`, `.md` and `.tex`, each atomically; make the folder, return the paths."""
    texts = {"csv": table.frame.to_csv(index=False), "md": markdown(table), "tex": latex(table)}
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{table.stem}.{suffix}" for suffix in suffixes]
    for path in paths:
        write_atomically(path, texts[path.suffix[1:]])
    return paths


def markdown(table: Table) -> str:
    """The caption, the padded table and the notes."""
    shown = table.shown.map(lambda cell: str(cell).replace("|", "\\|"))
    aligned = ["left"] * table.num_keys + ["right"] * (shown.shape[1] - table.num_keys)
    text = shown.to_markdown(
        index=False, disable_numparse=True, colalign=aligned[: shown.shape[1] * len(shown)]
    )
    return "\n\n".join([f"**{table.caption}**", text, *table.notes]) + "\n"


def latex(table: Table) -> str:
    """The table for a paper; needs booktabs and graphicx. Space separates groups: all keys but the last."""
    shown, num_keys = table.shown, table.num_keys
    style = shown.style.hide(axis="index").format(escape).format_index(escape, axis="columns")
    columns = "l" * num_keys + "r" * (shown.shape[1] - num_keys)
    [*head, last] = style.to_latex(hrules=True, column_format=columns).rstrip().splitlines()
    top = next(place for place, line in enumerate(head) if line == r"\midrule") + 1
    body: list[str] = []
    previous: list[str] | None = None
    for row, line in zip(shown.to_numpy().tolist(), head[top:], strict=False):
        group = row[: max(num_keys - 1, 0)]
        body += [r"\addlinespace"] * (previous is not None and group != previous) + [line]
        previous = group
    return "\n".join([
        r"\begin{table*}[t]", r"\centering",
        rf"\caption{{{escape(table.caption)}}}", rf"\label{{tab:{table.stem}}}",
        r"\resizebox{\textwidth}{!}{%", *head[:top], *body, *head[top + len(shown):], last + "}",
        r"\par\smallskip", r"\begin{minipage}{\textwidth}\footnotesize",
        *(escape(note) + r"\par" for note in table.notes), r"\end{minipage}", r"\end{table*}", "",
    ])  # fmt: skip


def escape(text: str) -> str:
    """Text as LaTeX source."""
    return "".join(_TEX.get(character, character) for character in text)


def split_keys(cells: pd.DataFrame, keys: Iterable[str]) -> tuple[list[str], str]:
    """The keys that tell rows apart, and the others as a sentence for the caption: " Pair: embedded pair."

    An empty label (autoregressive decoding has no tree) is no value. "method" always tells rows apart.
    """
    values = {key: [value for value in dict.fromkeys(cells.get(key, ())) if value != ""] for key in keys}
    varying = [key for key in keys if key == "method" or len(values[key]) > 1]
    fixed = [
        f"{labels.header(key)}: {labels.text(key, found[0])}"
        for key, found in values.items()
        if key not in varying and found
    ]
    return varying, f" {', '.join(fixed)}." if fixed else ""


def key_texts(cell: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """What names a cell's row, as printed; "method" is its decoder with its verifier."""
    return [
        labels.method(cell["decoder"], cell["verifier"]) if key == "method" else labels.text(key, cell[key])
        for key in keys
    ]


def footer(results: Results, plan: Plan, *definitions: str) -> tuple[str, ...]:
    """The last notes of every artefact: where its numbers are from, what they mean, and what is missing."""
    done = results.cells[results.cells.status == "done"]
    sizes = sorted({len(results.rows[cell_id]) for cell_id in done.cell_id[~done.is_audit]})
    timed = results.cells[~results.cells.is_audit]
    absent = int((timed.status != "done").sum())
    source = (
        f"Profile: {plan.profile}. Device: {listed(done.device) or 'none'}. "
        f"Prompts per cell: {listed(sizes) or 'none'}. Commit: {listed(done.commit) or 'none'}. "
        f"Made by: {plan.command}."
    )
    gap = f"Incomplete: {absent} of {len(timed)} cells are missing, failed or interrupted."
    return (source, *definitions, *([gap] if absent else []), *plan.stale)


def listed(values: Iterable[object]) -> str:
    """Distinct values in their order, without None and empty ones."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value not in (None, "")))
