"""The kind of draft that a loader of pairs gives, known before any model is read; no torch."""

from collections.abc import Callable
from typing import Any, TypeVar

Loader = TypeVar("Loader", bound=Callable[..., Any])
_OF_EAGLE: set[Callable[..., Any]] = set()


def of_eagle(loader: Loader) -> Loader:
    """Mark a loader of pairs whose draft, if there is one, is an EAGLE drafter."""
    _OF_EAGLE.add(loader)
    return loader


def loads_eagle(loader: Callable[..., Any]) -> bool:
    """Whether a loader is marked by `of_eagle`."""
    return loader in _OF_EAGLE
