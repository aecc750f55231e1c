"""From an artefact's plan and numbers to a submission: of what was measured here, or of what is published."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import audits
from analysis.load import LABELS, Plan, plan_files, read_plan
from analysis.metrics import METRICS
from analysis.page import provenance
from analysis.page.sections import maker
from analysis.published import FOLDER
from analysis.submissions.schema import FORMAT, REQUIRED, Origin, Submission, checked, named, plan_hash
from resispec.audit.verdict import Finding
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json

LEFT_OUT = {REQUIRED: (), "frontier": ("bound", "long", "temperature")}
"""Artefacts of a submission -> their parts that are none of it: ceilings, and what is not audited."""


def measured(profile: str, results: Path, name: str) -> Submission:
    """Submission of what results/PROFILE and results/raw hold. name: by default the device's.

    Raises InvalidInput, one line, for what is not complete, and for a plan older than its configuration.
    """
    plans = _plans(profile, results)
    if stale := [line for plan in plans for line in plan.stale]:
        raise InvalidInput(stale[0])
    entries = [_entry(plan, maker(plan.artefact)(plan).tables[0].frame) for plan in plans]
    facts = provenance.facts([_covered(plan) for plan in plans], results / "raw" / profile)
    return _submission(name, profile, facts, entries)


def published(profile: str, results: Path, name: str) -> Submission:
    """Submission of our published numbers, whose cells are not in the repository; results has their plans.

    Raises InvalidInput as `measured`, and where these plans do not ask for the cells that were published.
    """
    plans = _plans(profile, results)
    folder = FOLDER / profile
    try:
        frames = [pd.read_csv(folder / f"{plan.artefact}.csv", dtype={"cell_id": str}) for plan in plans]
    except (OSError, ValueError) as error:
        raise InvalidInput(f"published numbers cannot be read: {first_line(error)}") from error
    entries = [_entry(plan, frame) for plan, frame in zip(plans, frames, strict=True)]
    return _submission(name, profile, read_json(folder / provenance.FILE), entries)


def _plans(profile: str, results: Path) -> list[Plan]:
    """Plans of what is covered; an artefact beyond the required one may have none."""
    names = [name for name in LEFT_OUT if name == REQUIRED or plan_files(name, profile, results)]
    return [read_plan(name, profile, results) for name in names]


def _covered(plan: Plan) -> Plan:
    return plan.parts(lambda part: part not in LEFT_OUT[plan.artefact])


def _submission(
    name: str, profile: str, facts: Mapping[str, str], entries: Sequence[Mapping[str, Any]]
) -> Submission:
    origin = {field: facts.get(field.capitalize(), "") for field in Origin.model_fields}
    name = name or re.sub(r"[^\w .,()+@-]", " ", origin["device"])[:80]
    content = {"format": FORMAT, "name": name, "profile": profile, "provenance": origin, "artefacts": entries}
    return checked(content, "this submission")


def _entry(plan: Plan, frame: pd.DataFrame) -> dict[str, Any]:
    """An artefact's part of a submission. frame: of its first table, a row for every cell and quantity.

    Raises InvalidInput for cells that are not done and audits that are not there.
    """
    covered = _covered(plan)
    audits = [request for request in covered.requests if request.is_audit]
    audit_ids = {named(request.texts): request.cell_id for request in audits}
    requests = [request for request in covered.requests if not request.is_audit]
    timed = {(request.cell_id, named(request.texts)): request.texts for request in requests}
    keys = list(dict.fromkeys([*LABELS, *(name for labels in timed.values() for name in labels)]))
    frame = frame.assign(**{key: frame[key].astype(object).where(frame[key].notna(), "") for key in keys})
    cells = []
    for (cell_id, *values), rows in frame.groupby(["cell_id", *keys], sort=False):
        labels = timed.get((cell_id, named(dict(zip(keys, values, strict=True)))))
        if labels is not None:
            cells.append(_row(plan, labels, rows, audit_ids.get(named(labels))))
    if len(cells) < len(timed):
        raise InvalidInput(
            f"{plan.artefact}: the plan's hash does not match its rows: it asks for {len(timed)} cells, of "
            f"which {len(cells)} have rows; {_again(plan)}"
        )
    asked = plan_hash((request.cell_id, request.texts, request.is_audit) for request in covered.requests)
    return {"artefact": plan.artefact, "command": plan.command, "plan_sha256": asked, "rows": cells}


def _row(plan: Plan, labels: Mapping[str, Any], rows: pd.DataFrame, audit_id: str | None) -> dict[str, Any]:
    """One cell. rows: its quantities. audit_id: the cell that audits it, None without one."""
    first, where = rows.iloc[0], f"{plan.artefact}: {named(labels)}"
    if first.status != "done":
        reason = f" ({first.reason})" if first.reason else ""
        raise InvalidInput(f"{where}: this cell is {first.status}{reason}; {_again(plan)}")
    bounds = rows.set_index("quantity")[["value", "lower", "upper"]].astype(object)
    values = bounds.where(bounds.notna(), None).to_dict("index")
    audit = None
    if labels["verifier"]:
        if audit_id is None:
            raise InvalidInput(f"{where}: an exactness audit is absent; {_again(plan)}")
        if first.verdict not in list(Finding):
            raise InvalidInput(f"{where}: its exactness audit is {first.verdict!r}; {_again(plan)}")
        audit = {"cell_id": audit_id, "verdict": str(first.verdict)}
        audit |= {name: values[name]["value"] for name in audits.QUANTITIES}
        audit["audited_tokens"] = int(audit["audited_tokens"] or 0)
    names = [metric.name for metric in METRICS if values.get(metric.name, {}).get("value") is not None]
    numbers = {name: values[name] for name in names}
    row = {"cell_id": str(first.cell_id), "labels": dict(labels), "num_prompts": int(first.num_prompts)}
    return row | {"numbers": numbers, "audit": audit}


def _again(plan: Plan) -> str:
    return f"`make reproduce-{plan.artefact} PROFILE={plan.profile}` measures what is missing"
