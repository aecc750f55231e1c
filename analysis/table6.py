"""Table 6: SpecInfer and ResiSpec with several targets and drafts, in the paper's layout."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import labels, long, metrics
from analysis.artefact import Artefact, beside, footer, paper, run, texts
from analysis.load import IDENTITY, Plan, Results, load
from analysis.metric_table import definitions, measure, side_by_side, with_column, with_figures
from analysis.stats import ABSENT, BRACKETS, Interval
from analysis.table import Notes, Table

TEXTS = texts("table6")
COLUMNS = (
    (metrics.ACCEPTED_LENGTH, "resispec", "ResiSpec accepted length"),
    (metrics.TOKENS_PER_S, "resispec", "ResiSpec tokens/s"),
    (metrics.ACCEPTED_LENGTH, "standard", "SpecInfer accepted length"),
    (metrics.TOKENS_PER_S, "standard", "SpecInfer tokens/s"),
    (metrics.GAIN, "resispec", "Gain"),
    (metrics.SPEEDUP, "resispec", "Speedup"),
)
PAPER_COLUMNS = {
    ("resispec", "accepted_length"): "resispec_accepted_length",
    ("resispec", "tokens_per_s"): "resispec_tokens_per_s",
    ("standard", "accepted_length"): "specinfer_accepted_length",
    ("standard", "tokens_per_s"): "specinfer_tokens_per_s",
}
MODELS = (
    long.named("pair", "Target", lambda row: labels.models(row["pair"])[0]),
    long.named("pair", "Draft", lambda row: labels.models(row["pair"])[1]),
)
DRAFT_KEYS = ("temperature", "tree", "decoder", "verifier")
"""Keys of a row of the drafts' table, beside the pair and other keys that the sweep varied."""


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells, and the table of the accepted length by draft."""
    results = load(plan, metrics.FIELDS)
    figures = paper("table6")

    def rows(row: Mapping[str, Any]) -> pd.DataFrame:
        """The paper's row of the same data set, or if there is none its rows of all data sets."""
        values = labels.paper_models(row["pair"])
        values |= {"temperature": row["temperature"], "tree": str(row["tree"])}
        known = figures if row["decoder"] == "specinfer" else figures[:0]
        return beside(known, values, {"dataset": str(row["dataset"])})

    frame = with_figures(measure(results), PAPER_COLUMNS, rows)
    beside_paper = TEXTS["beside"] if frame.paper_low.notna().any() else []
    about = [*beside_paper, *TEXTS["about"]]
    notes = footer(results, plan, about, definitions(metrics.METRICS, results))
    varying, _ = long.split_keys(with_column(frame, COLUMNS), ("decoder",))
    keys = [*MODELS, *long.names(["temperature", "dataset", "tree", *results.more, *varying])]
    table = side_by_side("table6", frame, keys, COLUMNS, TEXTS["caption"], notes)
    return Artefact((table, _by_draft(results)))


def _by_draft(results: Results) -> Table:
    """The drafts' table: accepted lengths over the next weaker draft's, of all data sets together.

    Drafts of one target go from the least capable to the most, which is the reverse of the `order`
    of the pairs' labels; two without an order are not compared. A draft that is not measured keeps
    its line, so that the next draft is compared with its neighbour alone.
    """
    cells = results.timed.assign(target=[labels.models(pair)[0] for pair in results.timed.pair])
    records: list[dict[str, Any]] = []
    for _, group in cells.groupby(["target", *DRAFT_KEYS, *results.more], sort=False):
        weaker_prompts, weaker = pd.DataFrame(), math.nan
        for pair, draft_cells in reversed(list(group.groupby("pair", sort=False))):
            rank = labels.rank("pair", pair)
            if weaker in (rank, math.inf):
                weaker_prompts = pd.DataFrame()
            weaker = rank
            first, done_cells = draft_cells.iloc[0], draft_cells[draft_cells.status == "done"]
            rows = [
                rows.assign(dataset=cell.dataset, alike=repr(rows.attrs["alike"]))
                for cell in done_cells.itertuples()
                for rows in [results.rows[cell.cell_id]]
            ]
            prompts = pd.concat([pd.DataFrame(), *rows], ignore_index=True)
            about = {name: first[name] for name in ("pair", *DRAFT_KEYS, *results.more)}
            about |= {
                "num_datasets": len(done_cells),
                "num_asked": len(draft_cells),
                "reason": first.reason,
            }
            about["status"] = "done" if len(done_cells) else first.status
            records += long.records(about, _quantities(prompts, weaker_prompts))
            weaker_prompts = prompts
    frame = pd.DataFrame(records)
    columns = (
        *MODELS,
        *long.names(["temperature", "tree", *results.more, "method"]),
        long.number("Accepted length", ".2f", "accepted_length"),
        long.number("Over the weaker draft", ".3f", "over_weaker_draft"),
        long.words(
            "num_datasets", "Data sets", lambda row: f"{row['num_datasets']} of {row['num_asked']}"
        ),
    )
    lines = long.tabulate(frame, ["pair", *DRAFT_KEYS, *results.more], columns)
    # for printed lines only
    frame = frame.drop(columns=["status", "reason", "num_asked"], errors="ignore")
    is_paper = any(labels.paper_models(pair)["target"] for pair in cells.pair)
    over = TEXTS["over"].format(order=TEXTS["order_of_paper" if is_paper else "order_of_labels"])
    return Table("table6_drafts", *lines, TEXTS["drafts"], frame, Notes((over, BRACKETS)))


def _quantities(prompts: pd.DataFrame, weaker_prompts: pd.DataFrame) -> dict[str, Interval]:
    """Quantities of a draft.

    prompts, weaker_prompts: those of the draft, and of the next weaker draft.
    """
    numbers = {"accepted_length": ABSENT, "over_weaker_draft": ABSENT}
    if len(prompts):
        numbers["accepted_length"] = metrics.ACCEPTED_LENGTH.of(prompts)
    names = ["dataset", *IDENTITY, "alike"]
    if len(prompts) and len(weaker_prompts) and prompts[names].equals(weaker_prompts[names]):
        numbers["over_weaker_draft"] = metrics.ACCEPTED_LENGTH.of(prompts, weaker_prompts)
    return numbers


if __name__ == "__main__":
    raise SystemExit(run("table6", make))
