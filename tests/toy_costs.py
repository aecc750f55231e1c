"""Costs that nobody measured: a file of them, so that a test knows what a search was told."""

from collections.abc import Callable, Mapping
from typing import Any

from experiments.configurations import Configuration
from experiments.costs import FORMAT, NEW_TOKENS, file_of, key_of, probes
from resispec.files import write_json

Seconds = Callable[[Configuration], float]


def proportional(one: Configuration) -> float:
    """A target whose forward takes as long as it has positions, in milliseconds."""
    return 1e-3 * one.topology.num_nodes


def flat(_one: Configuration) -> float:
    """A target whose forward takes 100 ms over any number of positions."""
    return 1e-1


def timed(one: Configuration, length: float, **parts: float) -> dict[str, Any]:
    """A step as if it had been timed; a walk and the rest take 10 us each
    where nothing else is said.
    """
    parts = {"verify_s": 1e-5} | parts
    return one.facts | {"length": length, "step_s": sum(parts.values()) + 1e-5} | parts


def made_up(target_s: Seconds, draft_s: float = 1e-4) -> list[dict[str, Any]]:
    """Every probe as if it had been timed; a level takes `draft_s`."""
    return [
        timed(
            one,
            num_tokens + NEW_TOKENS / 2,
            target_s=target_s(one),
            draft_s=draft_s * (one.topology.num_levels - 1),
        )
        for one, num_tokens in probes(256)
    ]


def entry_of(steps: Any) -> dict[str, Any]:
    """An entry of a file of costs."""
    about = {"device": "made up", "git_commit": "0" * 40, "started": "2026-01-01T00:00:00+00:00"}
    return about | {"pair": "toy", "steps": steps}


def save_costs(config: Mapping[str, Any], steps: Any) -> None:
    """Write costs where a cell of this configuration looks for them."""
    write_json(file_of(config), {"format": FORMAT, "pairs": {key_of(config): entry_of(steps)}})
