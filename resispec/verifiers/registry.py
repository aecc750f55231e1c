"""Acceptance rules and tree verifiers by name.

Third parties add theirs through the entry-point group `resispec.verifiers`; a class in a file is named
`path/to/file.py:Class`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

from resispec.errors import InvalidInput, first_line
from resispec.verifiers.base import SiblingRule, Verifier
from resispec.verifiers.top_down import as_verifier

ENTRY_POINTS = "resispec.verifiers"

_REGISTERED: dict[str, Callable[..., Any]] = {}

Factory = TypeVar("Factory", bound=Callable[..., Any])


def register(name: str) -> Callable[[Factory], Factory]:
    """A decorator that gives a name to a rule's or a verifier's class, or to a function that makes one."""

    def add(factory: Factory) -> Factory:
        _REGISTERED[name] = factory
        return factory

    return add


def available() -> list[str]:
    """Names that `get_rule` and `get_verifier` know, ours first."""
    return [*_REGISTERED, *sorted(set(_third_party()) - set(_REGISTERED))]


def get_rule(name: str, **options: Any) -> SiblingRule:
    """Make a sibling rule by name. Raises InvalidInput for an unknown name or option, with the known ones."""
    rule = _make(name, options)
    if not hasattr(rule, "law"):
        raise InvalidInput(f"{name!r} is a tree verifier, not a sibling rule; use get_verifier")
    return rule


def get_verifier(name: str, **options: Any) -> Verifier:
    """Make a tree verifier by name; a sibling rule is applied from the root down, see `as_verifier`.

    Raises InvalidInput as `get_rule`.
    """
    return as_verifier(_make(name, options))


def _make(name: str, options: dict[str, Any]) -> Any:
    if ".py:" in name:
        factory = _from_file(*name.rsplit(":", 1))
    elif name in _REGISTERED:
        factory = _REGISTERED[name]
    elif name in (plugins := _third_party()):
        factory = plugins[name].load()
    else:
        raise InvalidInput(f"unknown verifier {name!r}; known: {', '.join(available())}")
    try:
        return factory(**options)
    except TypeError as error:
        raise InvalidInput(f"verifier {name!r}: {first_line(error)}") from error


def _from_file(path: str, attribute: str) -> Callable[..., Any]:
    """A class or function of a Python file that belongs to the user."""
    spec = spec_from_file_location(Path(path).stem, path)
    if not Path(path).is_file() or spec is None or spec.loader is None:
        raise InvalidInput(f"verifier file {path} does not exist; give path/to/file.py:Class")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidInput(
            f"verifier file {path} cannot be loaded: {type(error).__name__}: {first_line(error)}"
        ) from error
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise InvalidInput(f"verifier file {path} has no {attribute!r}; it has {', '.join(public)}")
    return getattr(module, attribute)


def _third_party() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
