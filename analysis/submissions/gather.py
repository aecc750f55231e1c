"""The step from an artefact's plan and numbers, measured here or published, to a submission."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import audits
from analysis.load import LABELS, Plan, plan_files, read_plan
from analysis.metrics import METRICS
from analysis.page import provenance
from analysis.page.sections import maker
from analysis.published import FOLDER, source
from analysis.submissions.schema import FORMAT, REQUIRED, Origin, Submission, checked, named, plan_hash
from resispec.audit.verdict import Finding
from resispec.errors import InvalidInput
from resispec.files import read_json

LEFT_OUT = {REQUIRED: (), "frontier": ("bound", "long", "temperature")}
"""Artefact of a submission -> the parts that it leaves out: ceilings, and cells that are not audited."""


def gather(profile: str, results: Path, name: str, published: bool = False) -> Submission:
    """The submission of the content of results/PROFILE and results/raw.

    name: its name, by default the device's. published: whether it has our published numbers instead, with
    the plans of `results` if there are any, else the published plans.
    Raises InvalidInput, one line, for incomplete results, for a plan older than its configuration, and if
    the plans do not ask for the cells that were published.
    """
    folders = {stem: source(stem, profile, results) if published else results for stem in LEFT_OUT}
    names = [stem for stem, path in folders.items() if stem == REQUIRED or plan_files(stem, profile, path)]
    plans = [read_plan(artefact, profile, folders[artefact]) for artefact in names]
    covered = [plan.only(lambda cell, plan=plan: cell.part not in LEFT_OUT[plan.artefact]) for plan in plans]
    if published:
        folder = FOLDER / profile
        frames = [pd.read_csv(folder / f"{artefact}.csv", dtype={"cell_id": str}) for artefact in names]
        facts = read_json(folder / provenance.FILE)
    elif stale := [line for plan in plans for line in plan.stale]:
        raise InvalidInput(stale[0])
    else:
        frames = [maker(plan.artefact)(plan).tables[0].frame for plan in plans]
        facts = provenance.facts(covered)
    origin = {field: facts.get(field.capitalize(), "") for field in Origin.model_fields}
    content = {
        "format": FORMAT,
        "name": name or re.sub(r"[^\w .,()+@-]", " ", origin["device"])[:80],
        "profile": profile,
        "provenance": origin,
        "artefacts": [_entry(plan, frame) for plan, frame in zip(covered, frames, strict=True)],
    }
    return checked(content, "this submission")


def _entry(plan: Plan, frame: pd.DataFrame) -> dict[str, Any]:
    """An artefact's part of a submission. frame: that of its first table, a row per cell and quantity.

    Raises InvalidInput for cells that are not done and for missing audits. Cells without rows in the frame
    make the plan's hash fail.
    """
    audit_ids = {named(cell.texts): cell.cell_id for cell in plan.requests if cell.is_audit}
    timed = {(cell.cell_id, named(cell.texts)): cell.texts for cell in plan.requests if not cell.is_audit}
    keys = list(dict.fromkeys([*LABELS, *(name for labels in timed.values() for name in labels)]))
    frame = frame.assign(**{key: frame[key].astype(object).where(frame[key].notna(), "") for key in keys})
    cells = []
    for (cell_id, *values), rows in frame.groupby(["cell_id", *keys], sort=False):
        labels = timed.get((cell_id, named(dict(zip(keys, values, strict=True)))))
        if labels is not None:
            cells.append(_row(plan, labels, rows, audit_ids.get(named(labels))))
    digest = plan_hash((cell.cell_id, cell.texts, cell.is_audit) for cell in plan.requests)
    return {"artefact": plan.artefact, "command": plan.command, "plan_sha256": digest, "rows": cells}


def _row(plan: Plan, labels: Mapping[str, Any], rows: pd.DataFrame, audit_id: str | None) -> dict[str, Any]:
    """The row of one cell. rows: its quantities. audit_id: the id of the cell that audits it, or None."""
    first, problem = rows.iloc[0], ""
    if first.status != "done":
        problem = f"this cell is {first.status}{f' ({first.reason})' if first.reason else ''}"
    elif labels["verifier"] and audit_id is None:
        problem = "an exactness audit is absent"
    elif labels["verifier"] and first.verdict not in list(Finding):
        problem = f"its exactness audit is {first.verdict!r}"
    if problem:
        remedy = f"`{plan.command}` measures what is missing"
        raise InvalidInput(f"{plan.artefact}: {named(labels)}: {problem}; {remedy}")
    bounds = rows.set_index("quantity")[["value", "lower", "upper"]].astype(object)
    values = bounds.where(bounds.notna(), None).to_dict("index")
    audit = None
    if labels["verifier"]:
        audit = {"cell_id": audit_id, "verdict": str(first.verdict)}
        audit |= {name: values[name]["value"] for name in audits.QUANTITIES}
        audit["audited_tokens"] = int(audit["audited_tokens"] or 0)
    names = [metric.name for metric in METRICS if values.get(metric.name, {}).get("value") is not None]
    row = {"cell_id": str(first.cell_id), "labels": dict(labels), "num_prompts": int(first.num_prompts)}
    return row | {"numbers": {name: values[name] for name in names}, "audit": audit}
