"""The page that compares submissions: who sent what, and all rows of the same labels beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis import labels
from analysis.load import LABELS, SETTING
from analysis.metrics import METRICS
from analysis.page import view
from analysis.page.render import environment
from analysis.page.sections import titled
from analysis.published import MIN_PROMPTS
from analysis.report import Table
from analysis.stats import BRACKETS, Interval
from analysis.submissions.schema import Entry, Number, Row, Submission

SHOWN = ("accepted_length", "accepted_length_gain", "tokens_per_s", "speedup_vs_autoregressive")
AGREES = (
    "Beside the first, {}: accepted lengths agree when their intervals overlap; rows of fewer than {} "
    "prompts are not compared. Tokens/s belong to a machine. Gains and speedups are over rows of the same "
    "submission."
)


def render(submissions: Sequence[Submission]) -> str:
    """The page, as `report.html` looks. submissions: at least one; the others are compared with the first."""
    sections = [
        {"name": name, "title": titled(name), "grid": view.grid(_rows(name, submissions))}
        for name in dict.fromkeys(entry.artefact for one in submissions for entry in one.artefacts)
    ]
    template = environment().get_template("submissions.html.j2")
    return template.render(
        overview=view.grid(_overview(submissions)),
        sections=sections,
        count=len(submissions),
        max_open_rows=24,
    )


def _overview(submissions: Sequence[Submission]) -> Table:
    """A line for each submission and artefact; the same plan is the same cells."""
    records = []
    for one in submissions:
        for entry in one.artefacts:
            verdicts = Counter(row.audit.verdict for row in entry.rows if row.audit)
            audited = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
            records.append(
                {"Submission": one.name, "Artefact": titled(entry.artefact), "Profile": one.profile}
                | {"Device": one.provenance.device, "Commit": _short(one.provenance.commit)}
                | {"Measured": one.provenance.measured.partition("T")[0], "Cells": str(len(entry.rows))}
                | {"Audits": audited or labels.ABSENT, "Plan": entry.plan_sha256[:8]}
                | {"Versions": f"Python {one.provenance.python}, {one.provenance.versions}"}
            )
    frame = pd.DataFrame(records)
    return Table("submissions", frame, frame, 2, "What was submitted, and where it was measured.")


def _short(commit: str) -> str:
    return ", ".join(f"{one[:10]}{' (changed)' * one.endswith('(changed)')}" for one in commit.split(", "))


def _rows(artefact: str, submissions: Sequence[Submission]) -> Table:
    """Rows of the same labels beside each other, a line for each submission that has one."""
    first = submissions[0]
    reference = {_key(row): row for entry in _of(artefact, first) for row in entry.rows}
    found = [
        (_key(row), one, row) for one in submissions for entry in _of(artefact, one) for row in entry.rows
    ]
    places = {one.name: place for place, one in enumerate(submissions)}
    found.sort(key=lambda entry: (_order(entry[2]), places[entry[1].name]))
    records = [_record(one, row, reference.get(key), one is first) for key, one, row in found]
    frame = pd.DataFrame(records)
    shared = [name for name in ("Pair", "Tree") if frame[name].nunique() == 1]
    fixed = "".join(f" {name}: {frame[name].iloc[0]}." for name in shared)
    frame = frame.drop(columns=shared)
    caption = f"{titled(artefact)}: rows of the same labels, one for each submission.{fixed}"
    notes = (AGREES.format(first.name, MIN_PROMPTS), BRACKETS)
    return Table(f"submitted_{artefact}", frame, frame, 6 - len(shared), caption, notes)


def _of(artefact: str, one: Submission) -> list[Entry]:
    return [entry for entry in one.artefacts if entry.artefact == artefact]


def _key(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(row.labels.items()))


def _order(row: Row) -> tuple[Any, ...]:
    keys = [*SETTING, "decoder", "tree", "verifier"]
    ranks = [labels.rank(key, row.labels.get(key, "")) for key in keys]
    return (*ranks, str(_key(row)))


def _record(one: Submission, row: Row, reference: Row | None, is_first: bool) -> dict[str, str]:
    own = row.labels
    more = ", ".join(f"{key} {value}" for key, value in own.items() if key not in LABELS)
    method = labels.method(str(own["decoder"]), str(own.get("verifier", "")))
    record = {labels.header(key): labels.text(key, own[key]) for key in SETTING}
    record |= {"Method": f"{method}, {more}" if more else method}
    record |= {"Tree": labels.text("tree", own["tree"]) if own.get("tree") else labels.ABSENT}
    record |= {"Submission": one.name, "Audit": _audit(row)}
    for metric in (metric for metric in METRICS if metric.name in SHOWN):
        number = row.numbers.get(metric.name)
        record[metric.label] = labels.interval(_interval(number), metric.spec) if number else labels.ABSENT
    return record | {"Beside the first": labels.ABSENT if is_first else _agreement(row, reference)}


def _audit(row: Row) -> str:
    audit = row.audit
    if audit is None:
        return labels.ABSENT
    scores = ", ".join(f"{z:.1f}" for z in (audit.z_surprisal, audit.z_overdraft) if z is not None)
    return f"{audit.verdict} (z {scores}; {audit.audited_tokens:,} tokens)"


def _interval(number: Number) -> Interval:
    lower, upper = (float("nan") if bound is None else bound for bound in (number.lower, number.upper))
    return Interval(number.value, lower, upper)


def _agreement(row: Row, reference: Row | None) -> str:
    """Whether accepted lengths agree, by the rule for what is published."""
    if reference is None:
        return "not in it"
    if min(row.num_prompts, reference.num_prompts) < MIN_PROMPTS:
        return "too few prompts"
    own, other = row.numbers["accepted_length"], reference.numbers["accepted_length"]
    (low, high), (their_low, their_high) = (
        (one.value if one.lower is None else one.lower, one.value if one.upper is None else one.upper)
        for one in (own, other)
    )
    return "agrees" if low <= their_high and their_low <= high else "differs"
