"""Errors of Hydra and OmegaConf in one line: what is wrong, what is allowed, and the nearest name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.configuration.schema import CONF
from resispec.errors import InvalidInput

_NOISE = (
    "full_key:",
    "object_type=",
    "reference_type=",
    "To append to your config",
    "Set the environment variable",
)


def hydra_here() -> AbstractContextManager[Any]:
    """Hydra as the command line set it up, or set up for our own folder."""
    if GlobalHydra.instance().is_initialized():
        return nullcontext()
    return initialize_config_dir(str(CONF), version_base="1.3")


@contextmanager
def explained(config_name: str = "run") -> Iterator[None]:
    """Turn what Hydra raises for a command line that does not compose into InvalidInput of one line.

    config_name: the file of conf/ that says which keys there are.
    """
    try:
        yield
    except InvalidInput:
        raise
    except MissingConfigException as error:
        raise InvalidInput(_unknown_option(error)) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise _explained(error, config_name) from error


def unknown_key(key: str, config: Any) -> InvalidInput:
    """The error for a key that the configuration does not have."""
    content = OmegaConf.to_container(config, resolve=False)
    is_hydra = key.startswith("hydra.")  # otherwise Hydra's own keys are no help
    known = sorted(_keys({name: node for name, node in content.items() if (name == "hydra") == is_hydra}))
    group = key.rpartition(".")[0]
    siblings = [name for name in known if name.rpartition(".")[0] == group]
    near = difflib.get_close_matches(key, siblings, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return InvalidInput(f"unknown key {key!r}; {hint}allowed: {', '.join(siblings) or f'none in {group}'}")


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key != "_target_":
                yield f"{prefix}{key}"
                yield from _keys(value, f"{prefix}{key}.")


def _unknown_option(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").partition("/")
    if not error.options:
        return _one_line(error)
    folders = [path.name for path in (CONF / group).iterdir() if path.is_dir()]  # artefacts with parts
    options = sorted([*error.options, *folders])
    near = difflib.get_close_matches(name, options, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown {group} {name!r}; {hint}allowed: {', '.join(options)}"


def refusal(error: BaseException) -> InvalidInput | None:
    """What a resolver of ours refused, which OmegaConf wraps into where it was met."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, InvalidInput):
        found = found.__context__
    return found


def _explained(error: Exception, config_name: str) -> InvalidInput:
    if (refused := refusal(error)) is not None:
        return refused
    text = _one_line(error)
    if found := re.search(r"Could not override '([^']+)'", text):
        with hydra_here():
            return unknown_key(found.group(1), compose(config_name, return_hydra_config=True))
    return InvalidInput(text)


def _one_line(error: BaseException) -> str:
    """Hydra's and OmegaConf's messages span lines and hide the reason in the cause."""
    parts = [str(error), str(error.__cause__ or "")]
    lines = [line.strip() for part in parts for line in part.splitlines() if line.strip()]
    return "; ".join(line for line in dict.fromkeys(lines) if not line.startswith(_NOISE))
