"""What a profile will run, and what of it is skipped.

Planning every cell of a profile takes a minute. Here every sweep is planned for its first pair, data set and
temperature only, and the others are counted: cells differ in nothing else by these.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError

from experiments.cells import Cell
from experiments.configuration.messages import hydra_here
from experiments.configuration.schema import CONF
from experiments.configuration.sweeps import EXPERIMENT, part_names, values
from experiments.doctor.finding import Finding, note
from experiments.plan import ProfileLacks, parts_of
from experiments.status import EXPERIMENTS

AXES = ("pair", "dataset", "temperature")
Point = tuple[str, ...]


@dataclass
class Work:
    """What a profile asks for.

    cells: one for all that differ in AXES alone, with the points of AXES at which it is measured. artefacts:
    of every option of an axis, like ("pair", "embedded"), those that need it. lacks: what the profile does
    not give -> the experiments that need it.
    """

    cells: dict[str, tuple[Cell, set[Point]]] = field(default_factory=dict)
    artefacts: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    lacks: dict[str, list[str]] = field(default_factory=dict)

    def options(self, axis: str) -> list[str]:
        """The options of an axis that anything needs."""
        return [option for found, option in self.artefacts if found == axis]

    @property
    def num_cells(self) -> int:
        """Cells, each once however many artefacts ask for it."""
        return sum(len(points) for _, points in self.cells.values())

    def __str__(self) -> str:
        options = ", ".join(
            f"{len(found)} {name}{'s' * (len(found) > 1)}"
            for axis, name in zip(AXES, ("pair", "data set", "temperature"), strict=True)
            if (found := self.options(axis))
        )
        artefacts = {name for names in self.artefacts.values() for name in names}
        return f"{len(artefacts)} artefacts, {self.num_cells} cells ({options})"


def work_of(profile: str, results: Path) -> Work:
    """The work of all artefacts."""
    found = Work()
    with hydra_here():
        for name in (part for path in sorted(EXPERIMENTS.iterdir()) for part in part_names(path.stem)):
            try:
                _add(found, name, profile, results)
            except ProfileLacks as error:
                found.lacks.setdefault(error.key, []).append(name)
    return found


def _add(work: Work, name: str, profile: str, results: Path) -> None:
    axes = _axes(name, profile)
    few = [f"{axis}={options[0]}" for axis, options in axes.items()]
    [part] = parts_of([f"{EXPERIMENT}={name}", f"profile={profile}", f"results={results}", *few])
    for cell in part.cells:
        choices = {axis: axes.get(axis) or [str(cell.labels[axis])] for axis in AXES}
        key = json.dumps(
            {key: value for key, value in cell.determining.items() if key not in AXES}, sort_keys=True
        )
        kept = work.cells.setdefault(key, (cell, set()))
        kept[1].update(itertools.product(*choices.values()))
        for axis, options in choices.items():
            for option in options:
                names = work.artefacts.setdefault((axis, option), [])
                names += [part.artefact] * (part.artefact not in names)


def _axes(name: str, profile: str) -> dict[str, list[str]]:
    """The options of AXES that an experiment sweeps over, from its file and the profile's, which is quick.

    Empty where the profile does not give them.
    """
    own = OmegaConf.load(EXPERIMENTS / f"{name}.yaml")
    whole = OmegaConf.merge(OmegaConf.load(CONF / "profile" / f"{profile}.yaml"), {"own": own})
    params = whole.own.hydra.sweeper.params
    try:
        lines = [f"{axis}={params[axis]}" for axis in AXES if axis in params]
    except InterpolationKeyError:
        return {}
    return {one.get_key_element(): values(one) for one in OverridesParser.create().parse_overrides(lines)}


def skipped(work: Work, lost: Iterable[tuple[str, str]]) -> list[Finding]:
    """What will not run. lost: options of axes that cannot be had, as in `Work.artefacts`."""
    found = [
        note("skipped", f"{', '.join(names)}: the profile gives no {key}")
        for key, names in work.lacks.items()
    ]
    for axis, option in lost:
        if needing := work.artefacts.get((axis, option)):
            found.append(note("skipped", f"of {', '.join(needing)} the cells of {axis} {option}"))
    return found
