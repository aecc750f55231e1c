"""Every cell that was asked for as one row: `python -m analysis.cells`, for plots of one's own.

Usage: python -m analysis.cells [--profile embedded] [--results results] [ARTEFACT...]

It reads the plans of artefacts and of other sweeps, by default all that there are, and writes
results/PROFILE/results.csv; results/README.md has the columns. The metrics are those of the tables. Where
prompts have categories it also writes results/PROFILE/ARTEFACT_categories.{csv,md,tex}, with "sweep" for
sweeps without a name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import audits, categories, metrics, report, script
from analysis.decoded import measure
from analysis.load import LABELS, Plan, Results, load, read_plan
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json, write_atomically

METRICS = tuple(metric.name + bound for metric in metrics.METRICS for bound in ("", "_lower", "_upper"))
FIRST = ("artefact", "part", "cell_id", "task", *LABELS)
LAST = ("status", "num_prompts", *METRICS, *audits.QUANTITIES, "verdict", "is_audit")
LAST += ("device", "commit", "reason", "command")


def tidy(profile: str, results: Path, artefacts: Sequence[str] = ()) -> pd.DataFrame:
    """One row for every cell of every sweep; an audit is in the row of the cell that it audits.

    Columns: FIRST, whatever else a sweep varied, LAST. artefacts: by default all that have a plan.
    Raises InvalidInput for one that has none, for a damaged plan and for a damaged cell.
    """
    rows: list[dict[str, Any]] = []
    for plan in _plans(profile, results, artefacts):
        for part in dict.fromkeys(request.part for request in plan.requests):
            rows += _rows(plan, part)
    frame = pd.DataFrame(rows)
    varied = [name for name in frame if name not in FIRST + LAST]
    return frame.reindex(columns=[*FIRST, *varied, *LAST])


def _plans(profile: str, results: Path, artefacts: Sequence[str]) -> list[Plan]:
    """The plans of artefacts, by default all that there are. Raises as `tidy`."""
    folder = results / profile / "plans"
    known = sorted({path.stem for path in folder.iterdir()}) if folder.is_dir() else []
    if not known:
        raise InvalidInput(f"there are no plans in {folder}; python -m experiments.run makes them")
    if unknown := [name for name in artefacts if name not in known]:
        raise InvalidInput(f"there is no plan of {unknown[0]!r} in {folder}; allowed: {', '.join(known)}")
    return [read_plan(artefact, profile, results) for artefact in artefacts or known]


def _rows(plan: Plan, part: str) -> list[dict[str, Any]]:
    """The rows of one sweep, whose cells are compared with each other alone."""
    stem = f"{plan.artefact}/{part}" if part else plan.artefact
    content = read_json(plan.results / plan.profile / "plans" / f"{stem}.json")
    tasks = {entry["cell_id"]: entry.get("task", "") for entry in content["cells"]}
    results = load(plan.parts(lambda name: name == part), ())
    measured, audited = _measured(results), audits.by_labels(results)
    rows = []
    for cell in results.cells.to_dict("records"):
        key = tuple(cell[name] for name in results.keys)
        is_own_row = not cell["is_audit"] or key not in measured
        if is_own_row:
            about = {"artefact": plan.artefact, "part": part, "command": content["command"]}
            about |= {
                "task": tasks[cell["cell_id"]],
                "num_prompts": len(results.rows.get(cell["cell_id"], ())),
            }
            rows.append(cell | about | measured.get(key, {}) | audited.get(key, {}))
    return rows


def _measured(results: Results) -> dict[tuple[Any, ...], dict[str, float]]:
    """METRICS of every cell that is no audit, by its labels; NaN for cells whose task is not to decode."""
    fields = set(metrics.fields())
    timed = results.cells[~results.cells.is_audit]
    others = [name for name in timed.cell_id if not fields <= set(results.rows.get(name, ()))]
    decoded = {name: rows for name, rows in results.rows.items() if name not in others}
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in measure(replace(results, rows=decoded)).to_dict("records"):
        own = found.setdefault(tuple(row[name] for name in results.keys), {})
        if row["quantity"] not in audits.QUANTITIES:
            bounds = {"": row["value"], "_lower": row["lower"], "_upper": row["upper"]}
            own |= {row["quantity"] + bound: value for bound, value in bounds.items()}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = script.parser("analysis.cells", __doc__.splitlines()[0])
    said = "such as table1, or sweep for sweeps of your own; by default all that have a plan"
    parser.add_argument("artefacts", nargs="*", metavar="ARTEFACT", help=said)
    chosen = parser.parse_args(arguments)
    path = chosen.results / chosen.profile / "results.csv"
    try:
        frame = tidy(chosen.profile, chosen.results, chosen.artefacts)
        write_atomically(path, frame.to_csv(index=False))
        tables = [categories.of(plan) for plan in _plans(chosen.profile, chosen.results, chosen.artefacts)]
        pages = [report.write(table, path.parent)[1] for table in tables if table is not None]
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"cells: {first_line(error)}\n")
        return 1
    num_done = int((frame.status == "done").sum())
    sys.stdout.write(f"wrote {path}: {len(frame)} cells, {num_done} of them done\n")
    sys.stdout.write("".join(f"wrote {page}\n" for page in pages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
