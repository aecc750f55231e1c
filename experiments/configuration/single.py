"""What commands that do one job with one pair share: the profile's pair, and one line for an error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf

from experiments.configuration.command import run_command
from experiments.configuration.schema import CONF
from resispec.errors import InvalidInput

DEFAULT_PROFILE = "embedded"


def run_single(job: Callable[[DictConfig], None], config_name: str, implied: Mapping[str, str]) -> int:
    """Run `job` on the configuration that this process's command line composes; return the exit code.

    config_name: a file of conf/. implied: group -> axis of the profile whose first option is chosen where the
    command line chooses none, like {"pair": "pairs"}.
    """
    errors: list[InvalidInput] = []

    def guarded(config: DictConfig) -> None:
        try:
            job(config)
        except InvalidInput as error:  # Hydra would print the overrides before it
            errors.append(error)

    def command() -> None:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(guarded)()
        if errors:
            raise errors[0]

    sys.argv[1:] = with_implied(sys.argv[1:], implied)
    return run_command(command, config_name)


def with_implied(arguments: Sequence[str], implied: Mapping[str, str]) -> list[str]:
    """A command line with what the profile implies, see `run_single`.

    An unknown profile implies nothing; composing the configuration says what is wrong with it.
    """
    is_override = ["=" in argument and not argument.startswith("-") for argument in arguments]
    given = dict(argument.partition("=")[::2] for argument in arguments)
    axes = axes_of(given.get("profile", DEFAULT_PROFILE))
    added = [
        f"{group}={axes[axis][0]}" for group, axis in implied.items() if axis in axes and group not in given
    ]
    place = is_override.index(True) if any(is_override) else 0  # Hydra takes overrides in one piece only
    return [*arguments[:place], *added, *arguments[place:]]


def axes_of(profile: str) -> dict[str, list[str]]:
    """What a profile's sweeps go over: axis -> options; empty for a profile that does not exist."""
    path = CONF / "profile" / f"{profile}.yaml"
    content: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
    return {axis: options.split(",") for axis, options in content.get("axes", {}).items()}
