"""Every cell that was asked for as one row: `resispec table cells`, for plots of one's own.

Usage: resispec table cells [--profile embedded] [--results results] [ARTEFACT...]

It reads the plans of artefacts and of other sweeps, by default all plans, and writes
results/PROFILE/results.csv; results/README.md explains the columns. The metrics are those of the
tables. If prompts have categories, it also writes results/PROFILE/ARTEFACT_categories.{csv,md,tex},
where ARTEFACT is "sweep" for sweeps of one's own.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import audits, categories, metrics, published, table
from analysis.cli import profile_parser
from analysis.load import (
    EXPERIMENTS,
    LABELS,
    Plan,
    facts_of,
    load,
    plan_names,
    read_plan,
    with_filters_off,
)
from analysis.metric_table import ACROSS_RUNS, measure
from resispec.errors import InvalidInput, in_one_line
from resispec.files import write_atomically

BOUNDS = ("", "_lower", "_upper")
METRICS = tuple(metric.name + bound for metric in metrics.METRICS for bound in BOUNDS)
FIRST = ("artefact", "part", "cell_id", "task", *LABELS)
LAST = ("status", "num_prompts", *METRICS, *audits.QUANTITIES, "verdict", "is_audit")
LAST += ("device", "commit", "reason", "command")
MEMORY = {"process": "peak_memory_bytes", "device": "peak_device_memory_bytes"}


def read_plans(profile: str, results: Path, artefacts: Sequence[str] = ()) -> list[Plan]:
    """The plans of artefacts, by default all; the published ones if the profile has no own ones.

    Raises InvalidInput for an artefact without a plan, without any plan, and for a damaged plan.
    """
    folder = results / profile / "plans"
    sources = dict.fromkeys(plan_names(profile, results), results)
    if not sources:
        folders = {
            path.stem: published.source(path.stem, profile, results)
            for path in EXPERIMENTS.iterdir()
        }
        sources = {name: folders[name] for name in sorted(folders) if folders[name] != results}
    if not sources:
        raise InvalidInput(f"there are no plans in {folder}; resispec run makes them")
    if unknown := [name for name in artefacts if name not in sources]:
        raise InvalidInput(
            f"there is no plan of {unknown[0]!r} in {folder}; allowed: {', '.join(sources)}"
        )
    return [read_plan(artefact, profile, sources[artefact]) for artefact in artefacts or sources]


def tidy(plans: Sequence[Plan]) -> pd.DataFrame:
    """A frame with a row for each cell of each sweep; an audit is in the row of the audited cell.

    Columns: FIRST, the other labels that a sweep varied, LAST, and numbers of single cells
    (`_rows`). A metric that was added later has columns where a cell has its fields. Raises
    InvalidInput for a damaged cell.
    """
    pairs = [pair for plan in plans for part in plan.by_part() for pair in _rows(part)]
    frame, numbers = (pd.DataFrame([pair[place] for pair in pairs]) for place in (0, 1))
    varied = [name for name in frame if name not in FIRST + LAST]
    names = sorted(numbers, key=lambda name: (name.rstrip("0123456789"), len(name), name))
    frame = with_filters_off(frame.reindex(columns=[*FIRST, *varied, *LAST]))
    added = [metric.name for metric in metrics.METRICS if not metric.is_of_every_cell]
    absent = [name + bound for name in added if frame[name].isna().all() for bound in BOUNDS]
    return frame.drop(columns=absent).join(numbers[names])


def _rows(plan: Plan) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of a row and its cell's own numbers for a part; only decoded cells have METRICS."""
    tasks = {request.cell_id: request.task for request in plan.requests}
    results = load(plan)
    decoded = metrics.decoded(results.rows)
    by_place: dict[tuple[Any, ...], dict[str, float]] = {}
    frame = measure(replace(results, rows=decoded))
    for row in frame.to_dict("records"):
        numbers = by_place.setdefault(results.place(row), {})
        if row["quantity"] not in audits.QUANTITIES:
            bounds = {"": row["value"], "_lower": row["lower"], "_upper": row["upper"]}
            numbers |= {row["quantity"] + bound: value for bound, value in bounds.items()}
    verdicts = audits.by_labels(results)
    for cell in results.cells.to_dict("records"):
        key, cell_id = results.place(cell), cell["cell_id"]
        if not cell["is_audit"] or key not in by_place:
            about = {
                "artefact": plan.artefact,
                "command": plan.commands[cell["part"]],
            } | results.about(cell)
            peaks = plan.provenance(cell_id).get("peak_memory_bytes", {})
            extras: dict[str, Any] = {MEMORY[place]: count for place, count in peaks.items()}
            if cell_id in decoded:
                extras |= metrics.of_cell(decoded[cell_id])
                extras[ACROSS_RUNS] = " ".join(frame.attrs[ACROSS_RUNS].get(cell_id, ()))
            if cell_id in results.biases:
                extras["shown_bias"] = results.biases[cell_id]
            row = (
                cell
                | about
                | {"task": tasks[cell_id]}
                | by_place.get(key, {})
                | verdicts.get(key, {})
            )
            yield row, extras


@in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = profile_parser("analysis.cells", __doc__.splitlines()[0])
    help_text = "such as table1, or sweep for sweeps of your own; by default all that have a plan"
    parser.add_argument("artefacts", nargs="*", metavar="ARTEFACT", help=help_text)
    options = parser.parse_args(arguments)
    path = options.results / options.profile / "results.csv"
    plans = read_plans(options.profile, options.results, options.artefacts)
    for plan in plans:
        sys.stderr.write("".join(f"{plan.artefact}: {line}\n" for line in plan.outdated))
    frame = tidy(plans)
    write_atomically(path, frame.to_csv(index=False))
    caption = "Every cell that was asked for."
    whole = table.Table("results", (), (), caption, frame, facts=facts_of(plans))
    write_atomically(path.with_suffix(".json"), table.json(whole))
    tables = list(filter(None, (categories.of(plan, plan.artefact) for plan in plans)))
    written = [file for one_table in tables for file in table.write(one_table, path.parent)]
    pages = [file for file in written if file.suffix == ".md"]
    num_done = int((frame.status == "done").sum())
    origin = f", from {published.CELLS} of what is published" if plans[0].is_published else ""
    sys.stdout.write(f"wrote {path}: {len(frame)} cells, {num_done} of them done{origin}\n")
    sys.stdout.writelines(f"wrote {page}\n" for page in pages)


if __name__ == "__main__":
    sys.exit(main())
