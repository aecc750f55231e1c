"""Costs that nobody measured: a file of them, so that a test knows what a search was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.costs.configuration import Configuration
from experiments.costs.cost_cache import file_of, key_of, write
from experiments.costs.model import Timed
from experiments.costs.time_steps import NEW_TOKENS, probes

Seconds = Callable[[Configuration], float]


def proportional(one: Configuration) -> float:
    """A target whose forward takes as long as it has positions, in milliseconds."""
    return 1e-3 * one.topology.num_nodes


def flat(_one: Configuration) -> float:
    """A target whose forward takes 100 ms over any number of positions."""
    return 1e-1


def made_up(target_s: Seconds, draft_s: float = 1e-4, context: int = 256) -> list[Timed]:
    """Every probe as if it had been timed; a level takes `draft_s`, a walk and the rest 10 us each."""
    found = []
    for probe in probes(context):
        one = probe.configuration
        parts = {
            "draft_s": draft_s * (one.topology.num_levels - 1),
            "target_s": target_s(one),
            "verify_s": 1e-5,
        }
        length = probe.num_tokens + NEW_TOKENS / 2
        found.append(Timed(one, length, sum(parts.values()) + 1e-5, **parts))
    return found


def entry_of(timed: list[Timed]) -> dict[str, Any]:
    """An entry of a file of costs."""
    about = {"device": "made up", "git_commit": "0" * 40, "started": "2026-01-01T00:00:00+00:00"}
    return about | {"pair": "toy", "steps": [one.facts for one in timed]}


def save_costs(config: Mapping[str, Any], target_s: Seconds, draft_s: float = 1e-4) -> None:
    """Write costs where a cell of this configuration looks for them."""
    write(file_of(config), key_of(config), entry_of(made_up(target_s, draft_s)))
