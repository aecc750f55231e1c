"""From a command line to cells, and the file in which a sweep says which cells it asked for.

Nothing here imports torch, so that planning is quick and wrong input is refused before anything starts.
"""

from __future__ import annotations

import hashlib
import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override

from experiments.cells import Cell
from experiments.configuration.compose import cell_at, composed, composition
from experiments.configuration.messages import explained, hydra_here
from experiments.configuration.schema import CONF
from resispec.errors import InvalidInput
from resispec.files import write_json

EXPERIMENT = "experiment"
AD_HOC = "sweep"  # the name of what is no artefact


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
    master = composed((*experiment, *fixed), config_name)
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
        if _is_new(cell, part):
            part.cells.append(cell)
            part.points.append(whole)
            part.sources |= _sources(composition(whole, config_name).choices, config_name)
    return part


def _is_new(cell: Cell, part: Part) -> bool:
    """Whether no earlier cell of a part is the same; what the decoder does not use makes no other cell.

    Raises InvalidInput for two cells that differ in what their labels do not say.
    """
    twins = [other for other in part.cells if other.labels == cell.labels]
    if any(other.determining != cell.determining for other in twins):
        raise InvalidInput(
            f"two cells of this sweep are both called {cell}; sweep over values that names show"
        )
    return not twins


def has_tree(cell: Cell) -> bool:
    """Whether a cell's tree is there: it needs no file, or its file exists."""
    return cell.tree_file is None or cell.tree_file.is_file()


def _values(override: Override) -> list[str]:
    if override.is_sweep_override():
        group = str(override.key_or_group)
        if isinstance(override.value(), Glob):
            options = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
            return [str(name) for name in override.value().filter(options)]
        return list(override.sweep_string_iterator())
    return [override.get_value_element_as_str()]


def _sources(choices: Mapping[str, str], config_name: str) -> set[Path]:
    """The configuration files that a cell was composed from."""
    paths = [
        CONF / f"{config_name}.yaml",
        *(
            CONF / group / f"{option}.yaml"
            for group, option in choices.items()
            if not group.startswith("hydra/")
        ),
    ]
    return {path for path in paths if path.is_file()}


def write_plan(part: Part, arguments: Sequence[str]) -> Path:
    """Write what a sweep asked for, `results/PROFILE/plans/ARTEFACT[/PART].json`, for analysis to read.

    A cell whose tree was searched for and not found has no id yet; it is missing like one that never ran.
    """
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
            {"cell_id": cell.cell_id if has_tree(cell) else "no-tree", "labels": cell.labels}
            | ({"tree_file": str(cell.tree_file)} if cell.tree_file else {})
            for cell in part.cells
        ],
    }
    write_json(path, content)
    return path
