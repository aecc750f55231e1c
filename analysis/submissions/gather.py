"""From an artefact's plan and numbers to a submission: of what was measured here, or of what is published."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import audits
from analysis.load import LABELS, Plan, read_plan
from analysis.metrics import METRICS
from analysis.page import provenance
from analysis.page.sections import maker
from analysis.published import FOLDER
from analysis.script import REPORT
from analysis.submissions.schema import FORMAT, REQUIRED, Provenance, Submission, checked, named, plan_hash
from resispec.audit.verdict import Finding
from resispec.errors import InvalidInput, first_line

COVERED = {REQUIRED: (), "frontier": ("bound", "long", "temperature")}
"""The artefacts of a submission, and their parts that are none of it: ceilings, and what is not audited."""
QUANTITIES = tuple(metric.name for metric in METRICS)


def measured(profile: str, results: Path, name: str) -> Submission:
    """Of what results/PROFILE and results/raw hold. name: by default the device's.

    Raises InvalidInput, one line, for what is not complete.
    """
    plans = _plans(profile, results)
    entries = [_entry(plan, maker(plan.artefact)(plan).tables[0].frame) for plan in plans]
    facts = provenance.facts([_covered(plan) for plan in plans], results / "raw" / profile)
    return _submission(name, profile, facts, entries)


def published(profile: str, results: Path, name: str) -> Submission:
    """Of our published numbers, whose cells are not in the repository; plans are those of results/PROFILE.

    Raises InvalidInput as `measured`, and where these plans do not ask for the cells that were published.
    """
    plans = _plans(profile, results)
    own = FOLDER / profile
    try:
        frames = [pd.read_csv(own / f"{plan.artefact}.csv", dtype={"cell_id": str}) for plan in plans]
        page = (own / REPORT).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"published numbers cannot be read: {first_line(error)}") from error
    entries = [_entry(plan, frame) for plan, frame in zip(plans, frames, strict=True)]
    shown = re.findall(r"<div><dt>([^<]*)</dt><dd>([^<]*)</dd></div>", page)
    return _submission(name, profile, [(key, html.unescape(value)) for key, value in shown], entries)


def _plans(profile: str, results: Path) -> list[Plan]:
    """The plans of what is covered; an artefact beyond the required one may have none."""
    folder = results / profile / "plans"
    there = [name for name in COVERED if (folder / f"{name}.json").is_file() or (folder / name).is_dir()]
    return [read_plan(name, profile, results) for name in dict.fromkeys([REQUIRED, *there])]


def _covered(plan: Plan) -> Plan:
    return plan.parts(lambda part: part not in COVERED[plan.artefact])


def _submission(
    name: str, profile: str, facts: Iterable[tuple[str, str]], entries: Sequence[Mapping[str, Any]]
) -> Submission:
    known = {key.lower(): value for key, value in facts}
    where = {field: known.get(field, "") for field in Provenance.model_fields}
    name = name or re.sub(r"[^\w .,()+@-]", " ", where["device"])[:80]
    content = {"format": FORMAT, "name": name, "profile": profile, "provenance": where, "artefacts": entries}
    return checked(content, "this submission")


def _entry(plan: Plan, frame: pd.DataFrame) -> dict[str, Any]:
    """An artefact's part of a submission. frame: of its first table, a row for every cell and quantity.

    Raises InvalidInput for cells that are not done and audits that are not there.
    """
    covered = _covered(plan)
    timed = {(one.cell_id, named(one.labels)): one.labels for one in covered.requests if not one.is_audit}
    auditing = {named(one.labels): one.cell_id for one in covered.requests if one.is_audit}
    keys = list(dict.fromkeys([*LABELS, *(name for labels in timed.values() for name in labels)]))
    frame = frame.assign(**{key: frame[key].astype(object).where(frame[key].notna(), "") for key in keys})
    found = []
    for _, rows in frame.groupby(["cell_id", *keys], sort=False):
        first = rows.iloc[0]
        labels = timed.get((first.cell_id, named({key: first[key] for key in keys})))
        if labels is not None:
            found.append(_row(plan, labels, rows, auditing.get(named(labels))))
    if len(found) < len(timed):
        raise InvalidInput(
            f"{plan.artefact}: the plan's hash does not match its rows: it asks for {len(timed)} cells, of "
            f"which {len(found)} have rows; {_again(plan)}"
        )
    asked = plan_hash((one.cell_id, one.labels, one.is_audit) for one in covered.requests)
    return {"artefact": plan.artefact, "command": plan.command, "plan_sha256": asked, "rows": found}


def _row(plan: Plan, labels: Mapping[str, Any], rows: pd.DataFrame, audit_id: str | None) -> dict[str, Any]:
    """One cell. rows: its quantities. audit_id: the cell that audits it, None without one."""
    first, where = rows.iloc[0], f"{plan.artefact}: {named(labels)}"
    if first.status != "done":
        reason = f" ({first.reason})" if first.reason else ""
        raise InvalidInput(f"{where}: this cell is {first.status}{reason}; {_again(plan)}")
    numbers = {
        row["quantity"]: {key: _number(row[key]) for key in ("value", "lower", "upper")}
        for row in rows.to_dict("records")
        if row["quantity"] in QUANTITIES and row["value"] == row["value"]
    }
    audit = None
    if labels["verifier"]:
        if audit_id is None or first.verdict not in list(Finding):
            said = (
                "an exactness audit is absent"
                if audit_id is None
                else f"its exactness audit is {first.verdict!r}"
            )
            raise InvalidInput(f"{where}: {said}; {_again(plan)}")
        scores = {row["quantity"]: _number(row["value"]) for row in rows.to_dict("records")}
        audit = {name: scores[name] for name in audits.QUANTITIES}
        tokens = int(audit["audited_tokens"] or 0)
        audit |= {"cell_id": audit_id, "verdict": str(first.verdict), "audited_tokens": tokens}
    shared = {"cell_id": str(first.cell_id), "labels": dict(labels), "num_prompts": int(first.num_prompts)}
    return shared | {"numbers": numbers, "audit": audit}


def _number(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def _again(plan: Plan) -> str:
    return f"`make reproduce-{plan.artefact} PROFILE={plan.profile}` measures what is missing"
