"""Table 2: Sequoia and EAGLE with their own rule and with ResiSpec, beside the paper's figures."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import labels, metrics, runs
from analysis.artefact import Artefact, beside, footer, paper, run, texts
from analysis.load import Plan, load
from analysis.metric_table import baseline_of, by_cell, definitions, measure, with_figures
from analysis.table import Number
from resispec.trees import grow_map

TEXTS = texts("table2")
METRICS = tuple(metric for metric in metrics.METRICS if metric.over != "autoregressive")
PAPER_COLUMNS = {
    (rule, metric.name): metric.name for rule in ("standard", "resispec") for metric in METRICS
}
# (decoder, tree, verifier) -> the decoder in the paper's rows that stand beside it. An L40 grow map
# has 64 nodes, and the paper's EAGLE gain needs the drafter's softmax as q
PAPER_DECODERS = {
    ("sequoia", "growmap_64", "standard"): "sequoia",
    ("sequoia", "growmap_64", "resispec"): "sequoia",
    ("eagle", "eagle2", "standard"): "eagle",
    ("eagle_softmax", "eagle2", "resispec"): "eagle",
}


def make(plan: Plan) -> Artefact:
    """The table of the plan's cells; every cell has a row. A second table has their runs."""
    results = load(plan.first_runs, metrics.FIELDS)
    figures = paper("table2")

    def rows(row: Mapping[str, Any]) -> pd.DataFrame:
        """The paper's row that stands beside this one; none if PAPER_DECODERS does not have it."""
        decoder = PAPER_DECODERS.get((row["decoder"], row["tree"], row["verifier"]))
        return beside(
            figures, {"decoder": decoder} | {key: row[key] for key in ("verifier", "temperature")}
        )

    frame = with_figures(measure(results, baseline_of(plan)), PAPER_COLUMNS, rows)
    decoder_notes = [TEXTS[name] for name in ("sequoia", "eagle") if (frame.decoder == name).any()]
    about = [*TEXTS["about"], *decoder_notes, *_expected(frame, plan)]
    notes = footer(results, plan, about, definitions(METRICS, results))
    table = by_cell("table2", results, frame, TEXTS["caption"], notes, METRICS)
    return Artefact((table, *runs.of("table2", plan)))


def _expected(frame: pd.DataFrame, plan: Plan) -> list[str]:
    """The note on the tokens per step that the search expected and the standard rule emitted."""
    about = {
        cell.cell_id: grow_map.about(cell.tree_file) for cell in plan.requests if cell.tree_file
    }
    lines = [
        f"{labels.name('dataset', row['dataset'])}, {labels.name('tree', row['tree'])}: "
        f"{about[row['cell_id']]['expected_tokens']:.2f} and "
        f"{Number.of(row, metrics.ACCEPTED_LENGTH.spec)}"
        for row in frame[frame.quantity == "accepted_length"].to_dict("records")
        if row["verifier"] == "standard" and "expected_tokens" in about.get(row["cell_id"], {})
    ]
    return [TEXTS["expected"].format(texts="; ".join(lines))] if lines else []


if __name__ == "__main__":
    raise SystemExit(run("table2", make))
