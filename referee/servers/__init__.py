"""Formats that servers speak, a module each: its `connect(server)` makes the engine that asks in it."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

from resispec.errors import InvalidInput

if TYPE_CHECKING:
    from referee.engines import Engine
    from referee.servers.client import Server


def available() -> list[str]:
    """The names of all formats."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "client")


def connect(name: str, server: Server) -> Engine:
    """The engine behind a server that speaks a format.

    Raises InvalidInput for an unknown name or a server that does not fit, Unanswered when there is no answer.
    """
    if name not in available():
        raise InvalidInput(f"unknown format {name!r}; allowed: {', '.join(available())}")
    engine: Engine = import_module(f"{__name__}.{name}").connect(server)
    return engine
