"""Table 6: SpecInfer and ResiSpec with several targets and drafts, in the paper's layout.

Usage: python -m analysis.table6 --profile embedded
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import labels, metrics
from analysis.artefact import Artefact, command, footer, paper, split_keys
from analysis.load import Plan, Results, load
from analysis.metric_table import (
    KeyColumns,
    Shown,
    definitions,
    figures_of,
    label_keys,
    measure,
    shown_cells,
    side_by_side,
)
from analysis.stats import ABSENT, BRACKETS, Interval
from analysis.table import Column, Gap, Key, Notes, Number, Table, Text

COLUMNS = (
    Shown(metrics.ACCEPTED_LENGTH, "resispec", "ResiSpec accepted length"),
    Shown(metrics.TOKENS_PER_S, "resispec", "ResiSpec tokens/s"),
    Shown(metrics.ACCEPTED_LENGTH, "standard", "SpecInfer accepted length"),
    Shown(metrics.TOKENS_PER_S, "standard", "SpecInfer tokens/s"),
    Shown(metrics.GAIN, "resispec", "Gain"),
    Shown(metrics.SPEEDUP, "resispec", "Speedup"),
)
PAPER_COLUMNS = {
    ("resispec", "accepted_length"): "resispec_accepted_length",
    ("resispec", "tokens_per_s"): "resispec_tokens_per_s",
    ("standard", "accepted_length"): "specinfer_accepted_length",
    ("standard", "tokens_per_s"): "specinfer_tokens_per_s",
}
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
"""Names of a row of the drafts' table, beside the pair and what else the sweep varied."""


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells, and how the accepted length grows with the draft."""
    results = load(plan, metrics.fields())
    columns = ("target", "draft", "temperature", "dataset", "tree", *PAPER_COLUMNS.values())
    figures = paper("table6", columns)

    def rows_beside(row: Mapping[str, Any]) -> pd.DataFrame:
        """The paper's row of the same data set, or those of all its data sets."""
        models = labels.paper_models(row["pair"])
        wanted = pd.Series([*models, row["temperature"], str(row["tree"])], [*columns[:3], "tree"])
        rows = figures[(figures[list(wanted.index)] == wanted).all(axis=1)]
        exact = rows[rows.dataset == str(row["dataset"])]
        return rows if exact.empty else exact

    frame = measure(results, figure=figures_of(PAPER_COLUMNS, rows_beside))
    notes = footer(results, plan, NOTES, definitions(metrics.METRICS, results))
    caption = f"Table 6 of the paper, {plan.profile} profile: targets and drafts of several sizes."
    varying, _ = split_keys(shown_cells(results, COLUMNS), ("decoder",))
    keys = MODELS | label_keys(["temperature", "dataset", "tree", *results.more, *varying])
    wide = side_by_side("table6", frame, keys, COLUMNS, caption, notes)
    return Artefact((wide, _by_draft(results, plan)))


MODELS: KeyColumns = {
    Column(name.lower(), name, "key"): lambda row, place=place: Key(*[labels.models(row["pair"])[place]] * 2)  # type: ignore[misc]
    for place, name in enumerate(("Target", "Draft"))
}


def _by_draft(results: Results, plan: Plan) -> Table:
    """How much longer a more capable draft's accepted length is, over all data sets together.

    Drafts of one target follow each other from the least capable to the most, in the order of `labels`. One
    that is not measured keeps its line, so that the next one is not compared with another than its neighbour.
    """
    cells = results.cells[~results.cells.is_audit]
    cells = cells.assign(target=[labels.models(pair)[0] for pair in cells.pair])
    named = MODELS | label_keys(["temperature", "tree", *results.more, "method"])
    records, lines = [], []
    for _, group in cells.groupby(["target", *DRAFT_KEYS, *results.more], sort=False):
        before = pd.DataFrame()
        for _, same_draft in reversed(list(group.groupby("pair", sort=False))):
            first, done = same_draft.iloc[0], same_draft[same_draft.status == "done"]
            rows = [results.rows[cell.cell_id].assign(dataset=cell.dataset) for cell in done.itertuples()]
            prompts = pd.concat([pd.DataFrame(), *rows], ignore_index=True)
            numbers = _quantities(prompts, before)
            about = {name: first[name] for name in ("pair", *DRAFT_KEYS, *results.more)}
            about["num_datasets"] = len(done)
            records += [about | {"quantity": name} | vars(value) for name, value in numbers.items()]
            length = Number.of(numbers["accepted_length"], ".2f")
            lines.append(
                (
                    *(cell(first) for cell in named.values()),
                    length if len(done) else Gap(first.status, first.reason),
                    Number.of(numbers["over_weaker_draft"], ".3f"),
                    Text(f"{len(done)} of {len(same_draft)}"),
                )
            )
            before = prompts
    columns = (
        *named,
        Column("accepted_length", "Accepted length", "number"),
        Column("over_weaker_draft", "Over the weaker draft", "number"),
        Column("num_datasets", "Data sets", "text"),
    )
    caption = f"Table 6, {plan.profile} profile: accepted length by draft, all data sets together."
    notes = Notes((OVER, BRACKETS))
    return Table("table6_drafts", columns, tuple(lines), caption, pd.DataFrame(records), notes)


def _quantities(prompts: pd.DataFrame, before: pd.DataFrame) -> dict[str, Interval]:
    """prompts, before: those of a draft, and of the next draft below it."""
    numbers = {"accepted_length": ABSENT, "over_weaker_draft": ABSENT}
    if len(prompts):
        numbers["accepted_length"] = metrics.ACCEPTED_LENGTH.of(prompts)
    names = ["dataset", "prompt_index", "prompt_id"]
    if len(prompts) and len(before) and prompts[names].equals(before[names]):
        numbers["over_weaker_draft"] = metrics.ACCEPTED_LENGTH.of(prompts, before)
    return numbers


main = command("table6", make)


if __name__ == "__main__":
    sys.exit(main())
