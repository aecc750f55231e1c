"""Table 6: SpecInfer and ResiSpec with several targets and drafts, in the paper's layout.

Usage: python -m analysis.table6 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import decoded, labels, metrics, paper, script
from analysis.load import Plan, Results, load
from analysis.report import Table, footer
from analysis.side_by_side import Column, lines, with_paper
from analysis.stats import ABSENT, BRACKETS, Interval, Sums, paired_gain, ratio

KEYS = ("pair", "temperature", "dataset", "tree")
COLUMNS = (
    Column("resispec", metrics.ACCEPTED_LENGTH, "ResiSpec accepted length"),
    Column("resispec", metrics.TOKENS_PER_S, "ResiSpec tokens/s"),
    Column("standard", metrics.ACCEPTED_LENGTH, "SpecInfer accepted length"),
    Column("standard", metrics.TOKENS_PER_S, "SpecInfer tokens/s"),
    Column("resispec", metrics.GAIN, "Gain"),
    Column("resispec", metrics.SPEEDUP, "Speedup"),
)
PAPER_COLUMNS = {
    ("resispec", "accepted_length"): "resispec_accepted_length",
    ("resispec", "tokens_per_s"): "resispec_tokens_per_s",
    ("standard", "accepted_length"): "specinfer_accepted_length",
    ("standard", "tokens_per_s"): "specinfer_tokens_per_s",
}
PAPER_PAIRS = {
    "sheared_2.7b__sheared_1.3b": ("Sheared-2.7B", "Sheared-1.3B"),
    "sheared_2.7b__tinyllama_1.1b": ("Sheared-2.7B", "TinyLlama-1.1B"),
    "sheared_2.7b__tiny_vicuna_1b": ("Sheared-2.7B", "Tiny-Vicuna-1B"),
    "llama2_7b__jf68m": ("Llama-2-7B", "JF68M"),
    # By their places: a smaller target with three drafts, and the main pair.
    "embedded_800k__420k": ("Sheared-2.7B", "Sheared-1.3B"),
    "embedded_800k__180k": ("Sheared-2.7B", "TinyLlama-1.1B"),
    "embedded_800k__80k": ("Sheared-2.7B", "Tiny-Vicuna-1B"),
    "embedded": ("Llama-2-7B", "JF68M"),
}
"""Our pair -> the target and draft of the paper's rows beside it."""
NOTES = (
    "(paper): the paper's figures for the same pair, data set, temperature and tree where it has them. "
    "Beside another data set stands their range over the paper's three. An embedded pair stands beside the "
    "pair of its place in the paper's table, a smaller target with three drafts and then the main pair: "
    "other models and other text, given for orientation.",
    "ResiSpec's rows are biased toward the draft, as their audits show: its accepted length and speed are "
    "not those of a lossless method.",
)
OVER = (
    "Over the smaller draft: the accepted length over that with the next smaller draft of the same target, "
    "paired by prompts."
)


def make(plan: Plan) -> script.Artefact:
    """The table of the plan's cells, and how the accepted length grows with the draft."""
    results = load(plan, metrics.fields())
    figures = paper.read("table6", ("target", "draft", *KEYS[1:], *PAPER_COLUMNS.values()))
    frame = with_paper(decoded.measure(results), lambda row: _paper(row, figures))
    wide = lines(frame, KEYS, COLUMNS)
    shown = pd.DataFrame([_keys(dict(zip(KEYS, values, strict=True))) for values in wide.index])
    table = Table(
        stem="table6",
        frame=frame,
        shown=pd.concat([shown, wide.reset_index(drop=True)], axis=1),
        num_keys=shown.shape[1],
        caption=f"Table 6 of the paper, {plan.profile} profile: targets and drafts of several sizes.",
        notes=(*NOTES, *footer(results, plan, *decoded.definitions(metrics.METRICS, results))),
    )
    return script.Artefact((table, _by_draft(results, plan)))


def _keys(values: Mapping[str, Any]) -> dict[str, str]:
    """What names a line, as in the paper: the two models apart."""
    target, _, draft = labels.name("pair", values["pair"]).partition(" + ")
    named = {labels.header(key): labels.text(key, values[key]) for key in KEYS[1:]}
    return {"Target": target, "Draft": draft} | named


def _paper(row: Mapping[str, Any], figures: pd.DataFrame) -> tuple[float, float]:
    """The lowest and the highest figure: of the same data set, else over all of the paper's."""
    column = PAPER_COLUMNS.get((row["verifier"], row["quantity"]))
    if column is None or row["pair"] not in PAPER_PAIRS:
        return float("nan"), float("nan")
    target, draft = PAPER_PAIRS[row["pair"]]
    is_row = (figures.target == target) & (figures.draft == draft)
    rows = figures[is_row & (figures.temperature == row["temperature"]) & (figures.tree == row["tree"])]
    exact = rows[rows.dataset == row["dataset"]]
    found = (rows if exact.empty else exact)[column]
    return found.min(), found.max()


def _by_draft(results: Results, plan: Plan) -> Table:
    """How much longer a more capable draft's accepted length is, over all data sets together.

    Drafts of one target follow each other from the least capable to the most, in the order of `labels`.
    """
    cells = results.cells[~results.cells.is_audit & (results.cells.status == "done")]
    cells = cells.assign(target=[labels.name("pair", pair).partition(" + ")[0] for pair in cells.pair])
    records, shown = [], []
    for _, group in cells.groupby(["target", "temperature", "tree", "verifier"], sort=False):
        before: Sums | None = None
        for _, same_draft in reversed(list(group.groupby("pair", sort=False))):
            own, first = _sums(same_draft, results), same_draft.iloc[0]
            found = {"accepted_length": ratio(*own)}
            found["over_smaller_draft"] = paired_gain(own, before) if before is not None else ABSENT
            named = {key: first[key] for key in ("pair", "temperature", "tree", "verifier")}
            records += [named | {"quantity": name} | vars(value) for name, value in found.items()]
            shown.append(_draft_line(first, found))
            before = own
    return Table(
        stem="table6_drafts",
        frame=pd.DataFrame(records),
        shown=pd.DataFrame(shown),
        num_keys=5,
        caption=f"Table 6, {plan.profile} profile: accepted length by draft, all data sets together.",
        notes=(OVER, BRACKETS),
    )


def _sums(cells: pd.DataFrame, results: Results) -> Sums:
    """Emitted tokens and steps of every prompt of some cells."""
    rows = pd.concat([results.rows[cell_id] for cell_id in cells.cell_id])
    return rows.num_emitted.to_numpy(), rows.num_steps.to_numpy()


def _draft_line(cell: Mapping[str, Any], found: Mapping[str, Interval]) -> dict[str, str]:
    """A printed line."""
    named = _keys(cell)
    named.pop(labels.header("dataset"))
    return named | {
        "Method": labels.method(cell["decoder"], cell["verifier"]),
        "Accepted length": labels.interval(found["accepted_length"], ".2f"),
        "Over the smaller draft": labels.interval(found["over_smaller_draft"], ".3f"),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("table6", make, arguments)


if __name__ == "__main__":
    sys.exit(main())
