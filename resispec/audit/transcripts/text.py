"""A report for a reader: lines of text, and a JSON object with every number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from resispec.audit.transcripts.auditing import Report
from resispec.audit.transcripts.judging import FALSE_ALARM_RATE, POWER, Judgement


def report_lines(report: Report) -> Iterator[str]:
    """The verdict, what it rests on, and what the audit could have seen."""
    yield f"verdict: {report.finding}"
    for sentence in report.summary:
        yield f"  {sentence}"
    for judgement in report.judgements:
        yield ""
        yield from _judgement(judgement, report.limit)
    if report.notes:
        yield ""
        yield from (f"note: {note}" for note in report.notes)
    yield ""
    yield (
        f"An exact engine is called biased with probability below {FALSE_ALARM_RATE:g} (by each statistic "
        f"with about {report.limit:.1g}, which a normal one has beyond {report.allowed_z:.2f})."
    )


def report_json(report: Report) -> dict[str, Any]:
    """Every number of a report, of plain types; what is not finite is null."""
    found = _plain(report)
    for judgement, one in zip(report.judgements, found["judgements"], strict=True):
        one["more_tokens"] = judgement.more_tokens
    return found | {"false_alarm_rate": FALSE_ALARM_RATE, "power": POWER}


def _judgement(judgement: Judgement, limit: float) -> Iterator[str]:
    comparison = judgement.comparison
    size = f"{comparison.tokens} tokens in {comparison.rows} rows"
    yield f"{comparison.what} ({size}): {judgement.finding}"
    yield from (f"  {reason}" for reason in judgement.reasons)
    for group, statistics in comparison.groups.items():
        cells = ", ".join(
            f"{name} {found.z:.1f}{'*' if found.p_value < limit else ''}"
            for name, found in statistics.items()
        )
        yield f"  z, {group}: {cells}"
    yield from (f"  {fact}" for fact in comparison.facts)
    if judgement.smallest_bias:
        kinds = ", ".join(f"{kind} from {size:.2g}" for kind, size in judgement.smallest_bias.items())
        unit = "total variation a token" if comparison.smallest_share is None else "share of the tokens"
        yield (
            f"  would have been found {POWER:.0%} of the time, by {unit}: {kinds}; half of it with "
            f"{judgement.more_tokens} more tokens an arm"
        )


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
