"""From the overrides of one point to its cell: what Hydra composes, the cell's labels, and its values."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from experiments.cells import Cell
from experiments.configuration.messages import refusal, unknown_key
from experiments.configuration.schema import CONF, check_values
from resispec.errors import InvalidInput

GROUPS = ("pair", "dataset", "decoder", "tree", "verifier")


@dataclass(frozen=True)
class Composition:
    """What Hydra composes.

    config: the job's own part, which several points share. choices: group -> option. params: what
    `hydra.sweeper.params` sweeps over, key -> values. exchanged: group -> node that takes the place of the
    one in `config`.
    """

    config: DictConfig
    choices: dict[str, str]
    params: dict[str, str]
    exchanged: dict[str, Any] = field(default_factory=dict)


def cell_at(overrides: tuple[str, ...], config_name: str = "run", varied: tuple[str, ...] = ()) -> Cell:
    """The cell of one point: no override is a sweep. varied: keys whose values belong into its labels."""
    found = composition(overrides, config_name)
    config = copy.deepcopy(found.config)
    for group, node in found.exchanged.items():
        config[group] = node
    for override in map(_parsed, overrides):
        if _is_composed(override):
            continue
        try:
            OmegaConf.update(config, str(override.key_or_group), override.value(), merge=True)
        except AttributeError as error:  # OmegaConf's, for keys that are not in the schema
            raise unknown_key(str(override.key_or_group), config) from error
    return cell_of(config, found.choices, varied)


@lru_cache(maxsize=8192)
def composition(overrides: tuple[str, ...], config_name: str) -> Composition:
    """What Hydra composes for the groups of a point; values are set in it afterwards, as Hydra does, too.

    Points of a sweep mostly differ in groups that set their own node alone. For those the node is exchanged
    in one composition, which takes a hundredth of the time of another one.
    """
    groups = {line: _parsed(line) for line in overrides if _is_composed(_parsed(line))}
    plain = {line: override for line, override in groups.items() if _is_plain(override)}
    base = composed(tuple(line for line in groups if line not in plain), config_name)
    exchanged = {str(override.key_or_group): str(override.value()) for override in plain.values()}
    if any(_own_node(group, base.choices[group]) != _content(base.config[group]) for group in exchanged):
        return composed(tuple(groups), config_name)  # something else sets values in the node
    nodes = {group: _own_node(group, option) for group, option in exchanged.items()}
    return Composition(base.config, base.choices | exchanged, base.params, nodes)


@lru_cache(maxsize=1024)
def _parsed(line: str) -> Override:
    [override] = OverridesParser.create().parse_overrides([line])
    return override


def _is_composed(override: Override) -> bool:
    """Whether an override chooses an option, is Hydra's own, or adds or removes a key; others set a value."""
    key = str(override.key_or_group)
    is_plain = not (override.is_add() or override.is_force_add() or override.is_delete())
    return not is_plain or override.package is not None or key.startswith("hydra") or (CONF / key).is_dir()


def _is_plain(override: Override) -> bool:
    """Whether an override chooses an option of a group that sets the group's own node and nothing else."""
    group, option = str(override.key_or_group), str(override.value())
    is_choice = override.input_line == f"{group}={option}"
    return is_choice and group in (*GROUPS, "task") and _own_node(group, option) is not None


@lru_cache(maxsize=256)
def _own_node(group: str, option: str) -> Any:
    """The content of an option that sets its group's node alone; None for others and for unknown ones."""
    path = CONF / group / f"{option}.yaml"
    if not path.is_file() or "@package" in path.read_text(encoding="utf-8"):
        return None
    content = _content(OmegaConf.load(path))
    return None if "defaults" in content else content


def _content(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=False)


@lru_cache(maxsize=1024)
def composed(overrides: tuple[str, ...], config_name: str) -> Composition:
    """What Hydra itself composes for overrides, none of them a sweep."""
    whole = compose(config_name, list(overrides), return_hydra_config=True)
    params = OmegaConf.to_container(whole.hydra.sweeper, resolve=True).get("params") or {}
    choices = {group: option for group, option in whole.hydra.runtime.choices.items() if option}
    with flag_override(whole, ["struct", "readonly"], False):
        del whole["hydra"]  # what remains keeps the schema, so that values which are set in it get its types
    return Composition(whole, choices, params)


def cell_of(config: DictConfig, choices: Mapping[str, str], varied: Sequence[str] = ()) -> Cell:
    """The cell of a composed configuration. Raises InvalidInput for a value that is missing or wrong.

    choices: group -> option. varied: keys whose values belong into the labels.
    """
    refers_to = OmegaConf.to_yaml(config.decoder)
    used = [name for name in ("tree", "verifier") if f"${{{name}}}" in refers_to]
    # Without a choice of verifier there is nothing to audit.
    config.audit = config.audit and "verifier" in used
    labels = {name: _label(name, choices[name], config[name]) for name in (*GROUPS[:3], *used)}
    config.names = {name: re.sub(r"[^\w.]+", "-", labels[name]).strip("-") for name in GROUPS[:3]}
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        raise InvalidInput(" ".join(str(refusal(error) or error).split())) from error
    assert isinstance(resolved, dict)
    values = {str(key): value for key, value in resolved.items()}
    counted = [*used, *(name for name in values if name not in ("tree", "verifier"))]
    if missing := _missing({name: values[name] for name in counted}):
        raise InvalidInput(f"{missing[0]} must be given, like {missing[0]}=VALUE")
    check_values(values)
    labels |= {"temperature": values["temperature"]} | ({"audit": True} if values["audit"] else {})
    for key in (name.lstrip("+") for name in varied):
        if key.partition(".")[0] not in (*GROUPS, "temperature", "audit"):
            labels[key] = choices[key] if key in choices else OmegaConf.select(config, key)
    return Cell(labels, values)


def _label(group: str, choice: str, node: DictConfig) -> str:
    """An option's name, with the values that are not those of its file: "chain(num_drafted=7)".

    A known verifier beside one's own, `verifier=custom verifier.name=my_rule.py:MyRule,standard`, is called
    by its name alone, as in every other sweep, so that it is the baseline here, too.
    """
    path = CONF / group / f"{choice}.yaml"
    if not path.is_file():
        return choice
    stored, composed = _leaves(_stored(path, group)), _leaves(_content(node))
    differing = {
        key: value
        for key, value in composed.items()
        if not key.endswith("_target_") and stored.get(key) != value and "${" not in str(value)
    }
    if choice == "custom" and (CONF / group / f"{differing.get('name')}.yaml").is_file():
        choice = str(differing.pop("name"))
    given = ", ".join(f"{key}={_short(value)}" for key, value in sorted(differing.items()))
    return f"{choice}({given})" if given else choice


@lru_cache(maxsize=256)
def _stored(path: Path, group: str) -> Any:
    """The node of a group's option as its file has it."""
    content = _content(OmegaConf.load(path))
    return content[group] if "@package _global_" in path.read_text(encoding="utf-8") else content


def _leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, Mapping):
        return {prefix.removesuffix("."): node}
    return {name: value for key in node for name, value in _leaves(node[key], f"{prefix}{key}.").items()}


def _short(value: Any) -> Any:
    """A value in a label; of a path its last two parts."""
    return "/".join(Path(value).parts[-2:]) if isinstance(value, str) and "/" in value else value


def _missing(node: Any, prefix: str = "") -> list[str]:
    if isinstance(node, Mapping):
        return [name for key, value in node.items() for name in _missing(value, f"{prefix}{key}.")]
    return [prefix.removesuffix(".")] if node == "???" else []
