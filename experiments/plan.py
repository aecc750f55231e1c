"""From a command line to cells, and the file in which a sweep says which cells it asked for.

Nothing here imports torch, so that planning is quick and wrong input is refused before anything starts.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.cells import Cell
from experiments.config import CONF, check_values
from experiments.messages import explained, hydra_here, unknown_key
from resispec.errors import InvalidInput
from resispec.files import write_json

GROUPS = ("pair", "dataset", "decoder", "tree", "verifier")
EXPERIMENT = "experiment"
AD_HOC = "sweep"  # the name of what is no artefact


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


@dataclass
class Part:
    """One sweep: what `experiment=NAME` and the rest of a command line ask for.

    name: "table1", or "frontier/d5b3" where an artefact has parts. sources: the configuration files that its
    cells were composed from. points: the overrides of every cell, each once.
    """

    name: str
    cells: list[Cell] = field(default_factory=list)
    points: list[tuple[str, ...]] = field(default_factory=list)
    sources: set[Path] = field(default_factory=set)


def cells_of(overrides: Sequence[str], config_name: str = "run") -> list[Cell]:
    """The cells that a command line asks for, in order, each once.

    Raises InvalidInput, in one line, for whatever does not compose: an unknown name, a misspelt key, a wrong
    type or value.
    """
    return [cell for part in parts_of(overrides, config_name) for cell in part.cells]


def parts_of(overrides: Sequence[str], config_name: str = "run") -> list[Part]:
    """The sweeps that a command line asks for: one for every experiment that it names, or one of its own."""
    parsed = OverridesParser.create().parse_overrides(with_parts(overrides))
    named = next((override for override in parsed if override.get_key_element() == EXPERIMENT), None)
    rest = [override for override in parsed if override is not named]
    with hydra_here(), explained(config_name):
        return [_part(name, rest, config_name) for name in (_values(named) if named else [None])]


def with_parts(overrides: Sequence[str]) -> list[str]:
    """Overrides in which an artefact that is a folder of experiments stands for all of them."""
    found = []
    for override in overrides:
        key, _, value = override.partition("=")
        folders = [CONF / EXPERIMENT / name for name in value.split(",")]
        if key == EXPERIMENT and any(folder.is_dir() for folder in folders):
            names = [_part_names(folder) for folder in folders]
            override = f"{key}={','.join(itertools.chain(*names))}"
        found.append(override)
    return found


def _part_names(folder: Path) -> list[str]:
    return (
        [f"{folder.name}/{path.stem}" for path in sorted(folder.glob("*.yaml"))]
        if folder.is_dir()
        else [folder.name]
    )


def _part(name: str | None, overrides: Sequence[Override], config_name: str) -> Part:
    fixed = [override.input_line for override in overrides if not override.is_sweep_override()]
    experiment = [] if name is None else [f"{EXPERIMENT}={name}"]
    master = _composed((*experiment, *fixed), config_name)
    given = {override.get_key_element() for override in overrides}
    lines = [f"{key}={value}" for key, value in master.params.items() if key not in given]
    axes = [
        *OverridesParser.create().parse_overrides(lines),
        *(o for o in overrides if o.is_sweep_override()),
    ]
    varied = [override.get_key_element() for override in axes if len(_values(override)) > 1]
    part = Part(name or AD_HOC)
    for values in itertools.product(*(_values(override) for override in axes)):
        point = [f"{axis.get_key_element()}={value}" for axis, value in zip(axes, values, strict=True)]
        whole = (*experiment, *fixed, *point)
        cell = cell_at(whole, config_name, tuple(varied))
        if cell.labels not in [
            other.labels for other in part.cells
        ]:  # what the decoder does not use makes no other cell
            part.cells.append(cell)
            part.points.append(whole)
            part.sources |= _sources(composition(whole, config_name).choices, config_name)
    return part


def _values(override: Override) -> list[str]:
    if override.is_sweep_override():
        return list(override.sweep_string_iterator())
    return [override.get_value_element_as_str()]


def cell_at(overrides: tuple[str, ...], config_name: str = "run", varied: tuple[str, ...] = ()) -> Cell:
    """The cell of one point: no override is a sweep. varied: keys whose values belong into its labels."""
    composed = composition(overrides, config_name)
    config = copy.deepcopy(composed.config)
    for group, node in composed.exchanged.items():
        config[group] = node
    for override in map(_parsed, overrides):
        if _is_composed(override):
            continue
        try:
            OmegaConf.update(config, str(override.key_or_group), override.value(), merge=True)
        except AttributeError as error:  # OmegaConf's, for keys that are not in the schema
            raise unknown_key(str(override.key_or_group), config) from error
    return cell_of(config, composed.choices, varied)


@lru_cache(maxsize=8192)
def composition(overrides: tuple[str, ...], config_name: str) -> Composition:
    """What Hydra composes for the groups of a point; values are set in it afterwards, as Hydra does, too.

    Points of a sweep mostly differ in groups that set their own node alone. For those the node is exchanged
    in one composition, which takes a hundredth of the time of another one.
    """
    groups = {line: _parsed(line) for line in overrides if _is_composed(_parsed(line))}
    plain = {line: override for line, override in groups.items() if _is_plain(override)}
    base = _composed(tuple(line for line in groups if line not in plain), config_name)
    exchanged = {str(override.key_or_group): str(override.value()) for override in plain.values()}
    if any(_own_node(group, base.choices[group]) != _content(base.config[group]) for group in exchanged):
        return _composed(tuple(groups), config_name)  # something else sets values in the node
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
def _composed(overrides: tuple[str, ...], config_name: str) -> Composition:
    composed = compose(config_name, list(overrides), return_hydra_config=True)
    params = OmegaConf.to_container(composed.hydra.sweeper, resolve=True).get("params") or {}
    choices = {group: option for group, option in composed.hydra.runtime.choices.items() if option}
    own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    return Composition(own, choices, params)


def cell_of(config: DictConfig, choices: Mapping[str, str], varied: Sequence[str] = ()) -> Cell:
    """The cell of a composed configuration. Raises InvalidInput for a value that is missing or wrong.

    choices: group -> option. varied: keys whose values belong into the labels.
    """
    refers_to = OmegaConf.to_yaml(config.decoder)
    used = [name for name in ("tree", "verifier") if f"${{{name}}}" in refers_to]
    config.audit = (
        config.audit and "verifier" in used
    )  # without a choice of verifier there is nothing to audit
    labels = {name: _label(name, choices[name], config[name]) for name in (*GROUPS[:3], *used)}
    config.names = {name: re.sub(r"[^\w.]+", "-", labels[name]).strip("-") for name in GROUPS[:3]}
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        raise InvalidInput(" ".join(str(error).split())) from error
    assert isinstance(resolved, dict)
    values = {str(key): value for key, value in resolved.items()}
    counted = [*used, *(name for name in values if name not in ("tree", "verifier"))]
    if missing := _missing({name: values[name] for name in counted}):
        raise InvalidInput(f"{missing[0]} must be given, like {missing[0]}=VALUE")
    check_values(values)
    labels |= {"temperature": values["temperature"]} | ({"audit": True} if values["audit"] else {})
    for key in varied:
        if key.partition(".")[0] not in (*GROUPS, "temperature", "audit"):
            labels[key] = choices[key] if key in choices else OmegaConf.select(config, key)
    return Cell(labels, values)


def _label(group: str, choice: str, node: DictConfig) -> str:
    """An option's name, with the values that are not those of its file: "chain(num_drafted=7)"."""
    path = CONF / group / f"{choice}.yaml"
    if not path.is_file():
        return choice
    stored, composed = _leaves(_stored(path, group)), _leaves(_content(node))
    differing = {
        key: value
        for key, value in composed.items()
        if not key.endswith("_target_") and key in stored and stored[key] != value and "${" not in str(value)
    }
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
    """A value in a label; of a path its last part."""
    return Path(value).name if isinstance(value, str) and "/" in value else value


def _missing(node: Any, prefix: str = "") -> list[str]:
    if isinstance(node, Mapping):
        return [name for key, value in node.items() for name in _missing(value, f"{prefix}{key}.")]
    return [prefix.removesuffix(".")] if node == "???" else []


def _sources(choices: Mapping[str, str], config_name: str) -> set[Path]:
    """The configuration files that a cell was composed from."""
    paths = [
        CONF / f"{config_name}.yaml",
        *(CONF / group / f"{option}.yaml" for group, option in choices.items()),
    ]
    return {path for path in paths if path.is_file()}


def write_plan(part: Part, arguments: Sequence[str]) -> Path:
    """Write what a sweep asked for, `results/PROFILE/plans/ARTEFACT[/PART].json`, for analysis to read."""
    artefact, _, name = part.name.partition("/")
    config = part.cells[0].config
    path = Path(config["results"]) / config["profile"] / "plans" / f"{part.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [argument for argument in arguments if not argument.startswith(f"{EXPERIMENT}=")]
    command = [*([f"{EXPERIMENT}={part.name}"] if part.name != AD_HOC else []), *kept]
    content = {
        "artefact": artefact,
        "part": name,
        "profile": config["profile"],
        "command": f"python -m experiments.run {shlex.join(command)}".strip(),
        "sources": {
            source.relative_to(CONF.parent).as_posix(): hashlib.sha256(source.read_bytes()).hexdigest()
            for source in sorted(part.sources)
        },
        "cells": [
            {"cell_id": cell.cell_id, "labels": cell.labels}
            | ({"tree_file": str(cell.tree_file)} if cell.tree_file else {})
            for cell in part.cells
        ],
    }
    write_json(path, content)
    return path
