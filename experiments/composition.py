"""Hydra, set up once, and the configurations that it composes.

A composition takes Hydra 60 to 80 ms. Points of a sweep mostly differ in values, which are set in a
copy, and in options that set nothing but their group's own node, which is exchanged; so what is
composed is kept, and thousands of cells are planned in seconds. Nothing here imports torch.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, flag_override

from experiments.schema import CONF, GROUPS
from resispec.errors import InvalidInput

COMMAND_LINE = "command-line"
"""Hydra's name for the provider of the folder of --config-dir."""


class _OptionFolder(SearchPathPlugin):
    """Adds the options of the folder of --config-dir to ours; conf/ comes first."""

    folder: ClassVar[str | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """See Hydra."""
        if self.folder is not None:
            place = f"file://{Path(self.folder).resolve()}"
            search_path.prepend(COMMAND_LINE, place, SearchPathQuery(provider="schema"))


Plugins.instance().register(_OptionFolder)


@contextmanager
def hydra_here(config_dir: str | None = None) -> Iterator[None]:
    """A context in which Hydra is set up for conf/, unless it is set up already.

    config_dir: a folder of options that are added.
    """
    if GlobalHydra.instance().is_initialized():
        yield
        return
    if config_dir != _OptionFolder.folder:  # what is kept was composed of other options
        _compose.cache_clear()
        parsed.cache_clear()
    _OptionFolder.folder = config_dir
    with initialize_config_dir(str(CONF), version_base="1.3"):  # restores the state in the end
        yield


def option_folders() -> tuple[str, ...]:
    """The folders of options, the first of which counts: conf/ and that of --config-dir, if any."""
    elements = GlobalHydra.instance().config_loader().get_search_path().get_path()
    added = (element.path for element in elements if element.provider == COMMAND_LINE)
    return ("conf", *(path.removeprefix("file://") for path in added))


def parse(lines: Sequence[str]) -> list[Override]:
    """Hydra's reading of overrides; a glob() chooses from the options that there are."""
    loader = GlobalHydra.instance().config_loader()
    return OverridesParser.create(loader).parse_overrides(list(lines))


@lru_cache(maxsize=1024)
def parsed(line: str) -> Override:
    """One override, see `parse`."""
    [override] = parse([line])
    return override


def content(node: Any) -> Any:
    """A node's values, unresolved."""
    return OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node


def composed(lines: Sequence[str]) -> tuple[DictConfig, dict[str, str]]:
    """The configuration of one point, and the option of every group.

    lines: overrides, none of them a sweep. Single values are set last, as by Hydra. Options that
    are plain, see `_is_plain`, are left out of what Hydra composes, and their nodes are exchanged
    afterwards; where another option sets values in such a node, all is composed at once.
    """
    overrides = [parsed(line) for line in lines]
    chosen = [override for override in overrides if is_composed(override)]
    exchanged = {
        str(override.key_or_group): str(override.value())
        for override in chosen
        if _is_plain(override)
    }
    pickled, choices = _compose(
        _distinct(override for override in chosen if not _is_plain(override))
    )
    config = pickle.loads(pickled)  # a deep copy in a sixth of the time that `copy` takes
    if any(_option(group, choices[group]) != content(config[group]) for group in exchanged):
        # Something else sets values in the node.
        (pickled, choices), exchanged = _compose(_distinct(chosen)), {}
        config = pickle.loads(pickled)
    for group, option in exchanged.items():
        config[group] = _option(group, option)
    for override in overrides:
        # ++ sets a value that is there by now; in its turn, so that of all values the last counts
        if not is_composed(override) or override.is_force_add():
            OmegaConf.update(config, str(override.key_or_group), override.value(), merge=True)
    return config, choices | exchanged


def is_composed(override: Override) -> bool:
    """Whether an override chooses an option, or adds or removes a key; others set a value."""
    is_value = not (override.is_add() or override.is_force_add() or override.is_delete())
    return (
        not is_value or override.package is not None or (CONF / str(override.key_or_group)).is_dir()
    )


def _distinct(overrides: Iterable[Override]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(override.input_line) for override in overrides))


def composed_by_hydra(config_name: str, lines: Iterable[str]) -> tuple[DictConfig, dict[str, str]]:
    """Hydra's own composition of conf/CONFIG_NAME.yaml, and the option of every group that has one.

    Hydra's node is left out. Raises InvalidInput for a profile whose name is not its file's.
    """
    config = compose(config_name, list(lines), return_hydra_config=True)
    choices = {group: option for group, option in config.hydra.runtime.choices.items() if option}
    name = choices.get("profile", config.profile)
    if name != config.profile:
        # the results of one would count as those of the other
        raise InvalidInput(
            f"the file of profile={name} says profile: {config.profile}; allowed: profile: {name}"
        )
    with flag_override(config, ["struct", "readonly"], False):
        del config["hydra"]  # the rest keeps the schema, which gives values set later their types
    return config, choices


@lru_cache(maxsize=1024)
def _compose(lines: tuple[str, ...]) -> tuple[bytes, dict[str, str]]:
    """The composition of a cell, pickled for copying, and the option of every group."""
    config, choices = composed_by_hydra("run", lines)
    return pickle.dumps(config), choices


def _is_plain(override: Override) -> bool:
    """Whether an override chooses an option that sets its group's own node and nothing else."""
    group, option = str(override.key_or_group), str(override.value())
    is_choice = override.input_line == f"{group}={option}"
    return is_choice and group in (*GROUPS, "task") and _option(group, option) is not None


@lru_cache(maxsize=256)
def _option(group: str, name: str) -> Any:
    """The node of an option that sets only its group's own node; None for any other option."""
    path = CONF / group / f"{name}.yaml"
    if not path.is_file() or "@package _global_" in path.read_text("utf-8"):
        return None
    values = content(OmegaConf.load(path))
    return None if "defaults" in values else values
