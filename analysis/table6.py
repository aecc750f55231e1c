"""Table 6: SpecInfer and ResiSpec with several targets and drafts, in the paper's layout.

Usage: python -m analysis.table6 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import decoded, labels, metrics, paper, script
from analysis.load import Plan, Results, load
from analysis.report import Table, footer, split_keys
from analysis.side_by_side import Column, key, shown_cells, table, with_paper
from analysis.stats import ABSENT, BRACKETS, Interval

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
    "inflated_llama2_7b__jf68m": ("Llama-2-7B", "JF68M"),
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
    "Over the weaker draft: the accepted length over that with the next draft below it, of the same target, "
    "paired by prompts; the order of drafts is that of the paper's table. Two drafts are compared only where "
    "the same data sets are measured with both."
)
DRAFT_KEYS = ("temperature", "tree", "decoder", "verifier")
"""What names a row of the drafts' table, beside the pair and what else the sweep varied."""


def make(plan: Plan) -> script.Artefact:
    """The table of the plan's cells, and how the accepted length grows with the draft."""
    results = load(plan, metrics.fields())
    figures = paper.read(
        "table6", ("target", "draft", "temperature", "dataset", "tree", *PAPER_COLUMNS.values())
    )
    frame = with_paper(decoded.measure(results), lambda row: _paper(row, figures))
    notes = (*NOTES, *footer(results, plan, *decoded.definitions(metrics.METRICS, results)))
    caption = f"Table 6 of the paper, {plan.profile} profile: targets and drafts of several sizes."
    varying, _ = split_keys(shown_cells(results, COLUMNS), ("decoder",))
    keys = MODELS | SETTINGS | {labels.header(name): key(name) for name in (*results.more, *varying)}
    wide = table("table6", frame, keys, COLUMNS, (caption, notes))
    return script.Artefact((wide, _by_draft(results, plan)))


def _model(place: int) -> Callable[[Mapping[str, Any]], str]:
    """What prints the target (0) or the draft (1) of a row's pair, whose name has both."""
    return lambda row: labels.name("pair", row["pair"]).partition(" + ")[2 * place] or labels.ABSENT


MODELS = {"Target": _model(0), "Draft": _model(1)}
SETTINGS = {labels.header(name): key(name) for name in ("temperature", "dataset", "tree")}


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

    Drafts of one target follow each other from the least capable to the most, in the order of `labels`. One
    that is not measured keeps its line, so that the next one is not compared with another than its neighbour.
    """
    cells = results.cells[~results.cells.is_audit]
    cells = cells.assign(target=[MODELS["Target"](cell) for cell in cells.to_dict("records")])
    keys = (*DRAFT_KEYS, *results.more)
    records, shown = [], []
    for _, group in cells.groupby(["target", *keys], sort=False):
        before = pd.DataFrame()
        for _, same_draft in reversed(list(group.groupby("pair", sort=False))):
            prompts = _prompts(same_draft, results)
            found = _quantities(prompts, before)
            named = {name: same_draft[name].iloc[0] for name in ("pair", *keys)}
            named["num_datasets"] = int((same_draft.status == "done").sum())
            records += [named | {"quantity": name} | vars(value) for name, value in found.items()]
            shown.append(_draft_line(same_draft, results.more, found))
            before = prompts
    return Table(
        stem="table6_drafts",
        frame=pd.DataFrame(records),
        shown=pd.DataFrame(shown),
        num_keys=5 + len(results.more),
        caption=f"Table 6, {plan.profile} profile: accepted length by draft, all data sets together.",
        notes=(OVER, BRACKETS),
    )


def _prompts(cells: pd.DataFrame, results: Results) -> pd.DataFrame:
    """The prompts of the cells that are done, with their data sets; empty where none is."""
    done = cells[cells.status == "done"].to_dict("records")
    rows = [results.rows[cell["cell_id"]].assign(dataset=cell["dataset"]) for cell in done]
    return pd.concat([pd.DataFrame(), *rows], ignore_index=True)


def _quantities(own: pd.DataFrame, before: pd.DataFrame) -> dict[str, Interval]:
    """own, before: the prompts of a draft, and of the next draft below it."""
    found = {"accepted_length": ABSENT, "over_weaker_draft": ABSENT}
    if len(own):
        found["accepted_length"] = metrics.ACCEPTED_LENGTH.of(own)
    names = ["dataset", "prompt_index", "prompt_id"]
    if len(own) and len(before) and own[names].equals(before[names]):
        found["over_weaker_draft"] = metrics.ACCEPTED_LENGTH.of(own, before)
    return found


def _draft_line(cells: pd.DataFrame, more: Sequence[str], found: Mapping[str, Interval]) -> dict[str, str]:
    """A printed line. cells: a draft's, one a data set."""
    cell, is_done = cells.iloc[0].to_dict(), cells.status == "done"
    named = MODELS | {labels.header(name): key(name) for name in ("temperature", "tree", *more)}
    length = labels.interval(found["accepted_length"], ".2f")
    return {header: text(cell) for header, text in named.items()} | {
        "Method": labels.method(cell["decoder"], cell["verifier"]),
        "Accepted length": length if is_done.any() else labels.gap(cell),
        "Over the weaker draft": labels.interval(found["over_weaker_draft"], ".3f"),
        "Data sets": f"{is_done.sum()} of {len(cells)}",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    return script.run("table6", make, arguments)


if __name__ == "__main__":
    sys.exit(main())
