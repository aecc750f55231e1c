"""Acceptance rules and tree verifiers by name; third parties add theirs through the entry-point group `resispec.verifiers`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from resispec.errors import InvalidInput, first_line
from resispec.verifiers import resispec as resispec_rule
from resispec.verifiers import standard
from resispec.verifiers.base import Draws, Law, Outcomes, SiblingRule, Verifier
from resispec.verifiers.top_down import TopDown

__all__ = ["Draws", "Law", "Outcomes", "SiblingRule", "TopDown", "Verifier", "available", "get_rule", "get_verifier"]

ENTRY_POINTS = "resispec.verifiers"

_RULES: dict[str, Callable[..., SiblingRule]] = {
    "standard": standard.rule,
    "resispec": resispec_rule.rule,
}


def available() -> list[str]:
    """Names that `get_rule` and `get_verifier` know, ours first."""
    return [*_RULES, *sorted(set(_third_party()) - set(_RULES))]


def get_rule(name: str, **options: Any) -> SiblingRule:
    """Make a sibling rule by name. Raises InvalidInput for an unknown name or option, naming what is known."""
    made = _make(name, options)
    if not hasattr(made, "law"):
        raise InvalidInput(f"{name!r} is a tree verifier, not a sibling rule; use get_verifier")
    return made


def get_verifier(name: str, **options: Any) -> Verifier:
    """Make a tree verifier by name; a sibling rule is walked from the root down. Raises InvalidInput as `get_rule`."""
    made = _make(name, options)
    return TopDown(made) if hasattr(made, "law") else made


def _make(name: str, options: dict[str, Any]) -> Any:
    factory: Callable[..., Any] | None = _RULES.get(name)
    if factory is None and name in (plugins := _third_party()):
        factory = plugins[name].load()
    if factory is None:
        raise InvalidInput(f"unknown verifier {name!r}; known: {', '.join(available())}")
    try:
        return factory(**options)
    except TypeError as error:
        raise InvalidInput(f"verifier {name!r}: {first_line(error)}") from error


def _third_party() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
