"""Errors of Hydra and OmegaConf in one line: what is wrong, what is allowed, and the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from resispec.errors import InvalidInput

_NOISE = ("full_key:", "object_type=", "reference_type=", "To append to your", "Set the environment variable")


@contextmanager
def explained() -> Iterator[None]:
    """Turn what Hydra raises for a command line that does not compose into InvalidInput of one line."""
    try:
        yield
    except InvalidInput:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        raise _explanation(error) from error


def unknown(kind: str, name: str, allowed: Collection[str]) -> InvalidInput:
    """The error for a name that does not exist; the nearest one is proposed. kind: "verifier", "key"."""
    near = difflib.get_close_matches(name, sorted(allowed), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    none = f"none in {name.rpartition('.')[0]}"
    return InvalidInput(f"unknown {kind} {name!r}; {hint}allowed: {', '.join(sorted(allowed)) or none}")


def _explanation(error: BaseException) -> InvalidInput:
    """The first error below Hydra's wrapping that says more than Hydra does."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InvalidInput):  # of a resolver of ours
            return cause
        if isinstance(cause, MissingConfigException) and cause.options:
            group, _, name = (cause.missing_cfg_file or "").rpartition("/")
            return unknown(group, name, cause.options)
        if isinstance(cause, ConfigAttributeError | ConfigKeyError):
            key, parent = str(cause.full_key), cause.parent_node
            group = key.rpartition(".")[0]
            hidden = ("_target_", "hydra", "label")  # no help where a key of a cell is misspelt
            names = [name for name in parent if name not in hidden] if isinstance(parent, DictConfig) else []
            return unknown("key", key, [f"{group}.{name}".lstrip(".") for name in names])
        cause = cause.__cause__ or cause.__context__
    # Hydra's and OmegaConf's messages span lines and hide the reason in the cause.
    lines = [line.strip() for line in f"{error}\n{error.__cause__ or ''}".splitlines() if line.strip()]
    return InvalidInput("; ".join(line for line in dict.fromkeys(lines) if not line.startswith(_NOISE)))
