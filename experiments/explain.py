"""Errors of Hydra, OmegaConf and YAML as one line: what is wrong and allowed, the nearest name."""

import difflib
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from analysis.labels import slip
from resispec.errors import InvalidInput

_NOISE = (
    "full_key:", "object_type=", "reference_type=", "To append to your",
    "Set the environment variable",
    "3. To sweep over it",
)  # fmt: skip


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of Hydra and of YAML into InvalidInput, which is one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise _explanation(error) from error
    except yaml.YAMLError as error:
        raise InvalidInput(slip(error)) from error


def _explanation(error: BaseException) -> InvalidInput:
    """InvalidInput for an error of Hydra, from its first cause that says more than Hydra does."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InvalidInput):  # raised by one of our resolvers
            return cause
        if isinstance(cause, MissingConfigException) and cause.options:
            group, _, name = (cause.missing_cfg_file or "").rpartition("/")
            return unknown(group, name, cause.options)
        if isinstance(cause, ConfigAttributeError | ConfigKeyError):
            key, parent = str(cause.full_key), cause.parent_node
            group = key.rpartition(".")[0]
            hidden = ("_target_", "hydra", "label")  # no help where a key of a cell is misspelt
            names = (
                [name for name in parent if name not in hidden]
                if isinstance(parent, DictConfig)
                else []
            )
            return unknown("key", key, [f"{group}.{name}".lstrip(".") for name in names])
        cause = cause.__cause__ or cause.__context__
    # Hydra's and OmegaConf's messages span lines and hide the reason in the cause.
    lines = [
        line.strip() for line in f"{error}\n{error.__cause__ or ''}".splitlines() if line.strip()
    ]
    text = "; ".join(line for line in dict.fromkeys(lines) if not line.startswith(_NOISE))
    key = error.full_key if isinstance(error, ValidationError) else None
    return InvalidInput(f"{key}: {text}" if key else text)


def unknown(kind: str, name: str, allowed: Collection[str]) -> InvalidInput:
    """The error for a name that does not exist; the nearest one is proposed.

    kind: "verifier", "key".
    """
    matches = difflib.get_close_matches(name, sorted(allowed), n=1)
    hint = f"did you mean {matches[0]}? " if matches else ""
    none = f"none in {name.rpartition('.')[0]}"
    return InvalidInput(
        f"unknown {kind} {name!r}; {hint}allowed: {', '.join(sorted(allowed)) or none}"
    )
