"""From a command line to cells, and the file in which a sweep says which cells it asked for.

Nothing here imports torch, so that planning is quick and wrong input is refused before anything starts.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf.errors import InterpolationKeyError

from experiments.cells import Cell
from experiments.configuration.compose import cell_at, composed, composition
from experiments.configuration.messages import explained, hydra_here
from experiments.configuration.schema import CONF
from experiments.configuration.sweeps import EXPERIMENT, is_glob, part_names, values
from experiments.planned import NO_TREE
from resispec.errors import InvalidInput
from resispec.files import write_json

AD_HOC = "sweep"  # the name of what is no artefact


class ProfileLacks(InvalidInput):
    """An experiment refers to a value that the profile does not give.

    key: of that value, like "axes.eagle_pairs".
    """

    def __init__(self, experiment: str, key: str, profile: str) -> None:
        super().__init__(
            f"{EXPERIMENT} {experiment!r} needs {key}, which conf/profile/{profile}.yaml does not give; "
            f"allowed: a profile that gives it, or {key}=VALUE"
        )
        self.key = key


@dataclass
class Part:
    """One sweep: what `experiment=NAME` and the rest of a command line ask for.

    name: "table1", or "frontier/d5b3" where an artefact has parts. sources: the configuration files that its
    cells were composed from. points: the overrides of every cell, each once. lacks: what the profile does
    not give, where that is why it has no cells.
    """

    name: str
    cells: list[Cell] = field(default_factory=list)
    points: list[tuple[str, ...]] = field(default_factory=list)
    sources: set[Path] = field(default_factory=set)
    lacks: str = ""

    @property
    def artefact(self) -> str:
        """The artefact that it is a part of."""
        return self.name.partition("/")[0]


def cells_of(overrides: Sequence[str], config_name: str = "run") -> list[Cell]:
    """The cells that a command line asks for, in order, each once.

    Raises InvalidInput, in one line, for whatever does not compose: an unknown name, a misspelt key, a wrong
    type or value.
    """
    return [cell for part in parts_of(overrides, config_name) for cell in part.cells]


def parts_of(overrides: Sequence[str], config_name: str = "run") -> list[Part]:
    """The sweeps that a command line asks for: one for every experiment that it names, or one of its own.

    `experiment=glob(...)` takes the experiments that the profile has what they need for, and gives the small
    ones first. One that is named is refused where the profile lacks something.
    """
    with hydra_here(), explained(config_name):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        named = next((override for override in parsed if override.get_key_element() == EXPERIMENT), None)
        rest = [override for override in parsed if override is not named]
        if named is None:
            return [_part(None, rest, config_name)]
        artefacts = dict.fromkeys(name for value in values(named) for name in part_names(value))
        if not is_glob(named):
            return [_part(name, rest, config_name) for name in artefacts]
        return _by_size([_part_if_possible(name, rest, config_name) for name in artefacts])


def _part_if_possible(name: str, overrides: Sequence[Override], config_name: str) -> Part:
    try:
        return _part(name, overrides, config_name)
    except ProfileLacks as error:
        return Part(name, lacks=error.key)


def _by_size(parts: Sequence[Part]) -> list[Part]:
    """The parts, those of the artefact with the fewest prompts first."""
    num_prompts: Counter[str] = Counter()
    for part in parts:
        num_prompts[part.artefact] += sum(cell.config["num_prompts"] for cell in part.cells)
    return sorted(parts, key=lambda part: (num_prompts[part.artefact], part.name))


def _part(name: str | None, overrides: Sequence[Override], config_name: str) -> Part:
    """One sweep. Raises ProfileLacks for an experiment that refers to what the profile does not give."""
    fixed = [override.input_line for override in overrides if not override.is_sweep_override()]
    if name is None:
        return _swept(Part(AD_HOC), fixed, overrides, config_name)
    try:
        return _swept(Part(name), [f"{EXPERIMENT}={name}", *fixed], overrides, config_name)
    except (InterpolationKeyError, InvalidInput) as error:
        found = re.search(r"Interpolation key '((?:axes|prompt_counts)\.\w+)' not found", str(error))
        if found is None:
            raise
        profile = composed(tuple(fixed), config_name).choices["profile"]
        raise ProfileLacks(name, found[1], profile) from error


def _swept(part: Part, fixed: Sequence[str], overrides: Sequence[Override], config_name: str) -> Part:
    """A part with its cells: every combination of what its experiment and the overrides sweep over."""
    params = composed(tuple(fixed), config_name).params
    given = {override.get_key_element() for override in overrides}
    lines = [f"{key}={value}" for key, value in params.items() if key not in given]
    axes = [
        *OverridesParser.create().parse_overrides(lines),
        *(o for o in overrides if o.is_sweep_override()),
    ]
    choices = {axis.get_key_element(): values(axis) for axis in axes}
    varied = tuple(key for key, found in choices.items() if len(found) > 1)
    for key in {"profile", "results"}.intersection(varied):
        raise InvalidInput(f"{key} has several values, {', '.join(choices[key])}; allowed: one for a command")
    for point in itertools.product(*choices.values()):
        chosen = [f"{key}={value}" for key, value in zip(choices, point, strict=True)]
        whole = (*fixed, *chosen)
        cell = cell_at(whole, config_name, varied)
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

    A sweep of one's own is a part of AD_HOC, named by its cells, so that another one leaves it as it is.
    A cell whose tree was searched for and not found has no id yet; it is missing like one that never ran.
    """
    config = part.cells[0].config
    is_named = part.name != AD_HOC
    name = part.name.partition("/")[2] if is_named else _digest(part.cells)
    folder = Path(config["results"]) / config["profile"] / "plans"
    path = folder / (f"{part.artefact}/{name}.json" if name else f"{part.artefact}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    others = (f"{EXPERIMENT}=", "wandb.")  # where dashboards go says nothing of the cells
    kept = [argument for argument in arguments if not argument.startswith(others)]
    command = [*([f"{EXPERIMENT}={part.name}"] if is_named else []), *kept]
    content = {
        "artefact": part.artefact,
        "part": name,
        "profile": config["profile"],
        "command": f"python -m experiments.run {shlex.join(command)}".strip(),
        "sources": {
            source.relative_to(CONF.parent).as_posix(): hashlib.sha256(source.read_bytes()).hexdigest()
            for source in sorted(part.sources)
        },
        "cells": [entry_of(cell) for cell in part.cells],
    }
    write_json(path, content)
    return path


def entry_of(cell: Cell) -> dict[str, Any]:
    """What a plan says of a cell; task, num_prompts and is_timed are for estimates of how long it takes."""
    entry = {
        "cell_id": cell.cell_id if has_tree(cell) else NO_TREE,
        "labels": cell.labels,
        "task": str(cell.config["task"].get("_target_", "")).rpartition(".")[2],
        "num_prompts": cell.config["num_prompts"],
        "is_timed": cell.is_timed,
    }
    return entry | ({"tree_file": str(cell.tree_file)} if cell.tree_file else {})


def _digest(cells: Sequence[Cell]) -> str:
    """8 hexadecimal digits that name a sweep by the cells that it asks for."""
    asked = json.dumps([[cell.labels, cell.determining] for cell in cells], sort_keys=True, default=str)
    return hashlib.sha256(asked.encode()).hexdigest()[:8]
