"""Third-party objects by name, from entry points or from a Python file of the user.

A package registers a KIND under the entry-point group `resispec.KINDs`: a verifier, a dataset, a
decoder or a server_format (docs/extend.md). In place of a registered name, `path/to/file.py:Class`
is allowed, too.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from resispec.errors import InvalidInput, first_line

Factory = Callable[..., Any]
NONE: Mapping[str, Factory] = {}
_log = logging.getLogger(__name__)


def available(kind: str, own: Mapping[str, Factory] = NONE) -> list[str]:
    """The known names of a kind: our own names first, then the names of entry points."""
    return [*own, *sorted(set(_entries(kind)) - set(own))]


def find(kind: str, name: str, own: Mapping[str, Factory] = NONE) -> Factory:
    """The class or function of a name.

    own: our own ones, by name; an entry point cannot replace them, and a warning says so.

    Raises InvalidInput for an unknown name, listing the known names, for a name of several
    packages, and for code that cannot be loaded.
    """
    if ".py:" in name:
        return _of_file(kind, *name.rsplit(":", 1))
    if name in own:
        _tell_hidden(kind, name)
        return own[name]
    entries = entry_points(group=f"resispec.{kind}s", name=name)
    if not entries:
        names = (
            ", ".join(available(kind, own)) or f"none; allowed: path/to/file.py:Class of a {kind}"
        )
        raise InvalidInput(f"unknown {kind} {name!r}; known: {names}")
    if len(entries) > 1:
        packages = ", ".join(
            f"{entry.dist and entry.dist.name} ({entry.value})" for entry in entries
        )
        raise InvalidInput(
            f"{kind} {name!r} is registered by several packages: {packages}; allowed: by one"
        )
    [entry] = entries
    try:
        return entry.load()
    except Exception as error:
        raise InvalidInput(f"{kind} {name!r} ({entry.value}): {_told(error)}") from error


@cache
def _tell_hidden(kind: str, name: str) -> None:
    """Warn, once, of an entry point that has a name of ours."""
    if entry := _entries(kind).get(name):
        _log.warning("%s %r of a package (%s): not used, the name is ours", kind, name, entry.value)


def check_free(kind: str, name: str, new: Any, known: Any) -> None:
    """Raise InvalidInput if a name is that of another known class or function.

    The same file may be loaded again. known: None for a free name.
    """
    if known is None:
        return
    ours, theirs = (getattr(one, "__qualname__", one) for one in (new, known))
    if _file(new) != _file(known) or ours != theirs:
        raise InvalidInput(
            f"the name {name!r} of {ours} is that of a known {kind}, {known.__module__}.{theirs}; "
            "allowed: a name of its own"
        )


def _file(factory: Any) -> Path | None:
    """The file in which a class or function is written; None for an interactive session."""
    path = getattr(sys.modules.get(factory.__module__), "__file__", None)
    return Path(path).resolve() if path else None


def make(kind: str, name: str, own: Mapping[str, Factory] = NONE, **options: Any) -> Any:
    """Make the object of a name with options.

    Raises InvalidInput as `find` does, and for unknown options.
    """
    factory = find(kind, name, own)
    try:
        return factory(**options)
    except TypeError as error:
        raise InvalidInput(f"{kind} {name!r}: {first_line(error)}") from error


def _of_file(kind: str, path: str, attribute: str) -> Factory:
    """A class or function from a Python file of the user."""
    # Dataclasses and pickles look a module up by its name: this one hides no other, and has no dot.
    spec = spec_from_file_location(str(Path(path).absolute()).replace(".", "_"), path)
    if not Path(path).is_file() or spec is None or spec.loader is None:
        raise InvalidInput(f"{kind} file {path} does not exist; give path/to/file.py:Class")
    module = sys.modules[spec.name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise InvalidInput(f"{kind} file {path} cannot be loaded: {_told(error)}") from error
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise InvalidInput(f"{kind} file {path} has no {attribute!r}; it has {', '.join(names)}")
    return getattr(module, attribute)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _entries(kind: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"resispec.{kind}s")}
