"""What the audit of an engine's transcripts says, of all tokens and of the first ones alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from resispec.audit.transcripts import Arm, Statistic, audit_arms
from resispec.audit.transcripts.chances import SMALLEST, z_of

FIRST_TOKENS = 50
PER_DECADE = 5
"""How many numbers of tokens lie between one and ten times as many."""


def points(num_tokens: int) -> list[int]:
    """Numbers of tokens in a geometric series from FIRST_TOKENS on, and all of them as the last."""
    found, step = [], 0
    while (count := round(FIRST_TOKENS * 10 ** (step / PER_DECADE))) < 0.9 * num_tokens:
        found.append(count)
        step += 1
    return [*found, num_tokens]


def verdict(arm: Arm) -> dict[str, Any]:
    """The columns of an engine: what the audit says of all its tokens."""
    report = audit_arms(arm)
    deciding = report.judgements[0]
    return {
        "verdict": str(report.finding),
        "reason": deciding.reasons[0],
        "shares_random_numbers": arm.is_shared,
        "limit": report.limit,
        "allowed_z": report.allowed_z,
        "smallest_temperature": deciding.smallest_bias.get("another temperature"),
        "smallest_draft": deciding.smallest_bias.get("a shift to the draft"),
    }


def curve(arm: Arm) -> Iterator[dict[str, Any]]:
    """For every number of tokens the statistic that is farthest out."""
    for count in points(arm.num_tokens):
        found = arm.statistics(count)
        if found:
            name = farthest(found)
            yield {
                "tokens": count,
                "statistic": name,
                "z": found[name].z,
                "p_value": found[name].p_value,
                "normal_z": normal_z(found[name]),
            }


def farthest(statistics: Mapping[str, Statistic]) -> str:
    """The name of the statistic with the least chance."""
    return max(statistics, key=lambda name: normal_z(statistics[name]))


def normal_z(statistic: Statistic) -> float:
    """How far out a normal variable of this chance lies; |z| where the chance is too small to be a number."""
    return z_of(statistic.p_value) if statistic.p_value > SMALLEST else abs(statistic.z)
