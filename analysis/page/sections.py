"""What the page shows of each artefact: what its script makes of its plan, or one line that says why not."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from analysis import published, script
from analysis.load import EXPERIMENTS, Plan, read_plan, read_state
from analysis.page import steps
from analysis.page.steps import Steps
from resispec.errors import InvalidInput, first_line

KINDS = ("table", "figure", "frontier")
"""The order of the artefacts: the paper's, by number within a kind, then what is beyond it."""


@dataclass(frozen=True)
class Section:
    """One artefact.

    make: the command that measures it. plan, made: None where there is none; then `problem` says why, unless
    it was never measured. states: how many of the plan's cells are "done", "failed", "interrupted" and
    "missing". steps: of its cells that decode. agreement: with what is published.
    """

    name: str
    make: str
    plan: Plan | None = None
    made: script.Artefact | None = None
    problem: str = ""
    states: Counter[str] = field(default_factory=Counter)
    steps: Steps | None = None
    agreement: str = ""

    @property
    def title(self) -> str:
        """ "table1" as "Table 1"."""
        return titled(self.name)


def titled(name: str) -> str:
    """The printed name of an artefact: "table1" is "Table 1", "my_sweep" is "My sweep"."""
    words, number = _split(name)
    return f"{words.replace('_', ' ').strip()} {number}".strip().capitalize()


def artefacts(folder: Path = EXPERIMENTS) -> list[str]:
    """The names of all artefacts, in the order of the page: one for every sweep or folder of sweeps."""
    return sorted(
        {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix == ".yaml"}, key=_place
    )


def _place(name: str) -> tuple[int, int, str]:
    words, number = _split(name)
    return KINDS.index(words) if words in KINDS else len(KINDS), int(number or 0), name


def _split(name: str) -> tuple[str, str]:
    found = re.fullmatch(r"(.*?)(\d*)", name)
    return (found[1], found[2]) if found else (name, "")


def gather(profile: str, results: Path, tell: Callable[[str], object]) -> list[Section]:
    """A section for every artefact, whatever there is of it.

    results: the folder of raw/ and PROFILE/. tell: is given a line before each artefact is computed.
    """
    names, found = artefacts(), []
    for place, name in enumerate(names, start=1):
        tell(f"{name} ({place} of {len(names)})")
        found.append(_section(name, profile, results))
    return found


def _section(name: str, profile: str, results: Path) -> Section:
    command = f"make reproduce-{name} PROFILE={profile}"
    plans = results / profile / "plans"
    if not ((plans / f"{name}.json").is_file() or any((plans / name).glob("*.json"))):
        return Section(name, command)
    plan, states = None, Counter[str]()
    try:
        plan = read_plan(name, profile, results)
        states = _states(plan)
        made = script.complete(maker(name), plan)
        return Section(name, command, plan, made, "", states, steps.of(name, plan), _agreement(made, profile))
    except (InvalidInput, OSError) as error:
        return Section(name, command, plan, None, first_line(error), states)


def _states(plan: Plan) -> Counter[str]:
    """How many cells are in which state; cells whose trees are not found yet share an id."""
    cells = {(one.cell_id, repr(one.labels), one.is_audit) for one in plan.requests}
    folder = plan.results / "raw" / plan.profile
    return Counter(read_state(folder / cell_id)["status"] for cell_id, *_ in cells)


def maker(name: str) -> Callable[[Plan], script.Artefact]:
    """The `make` of an artefact's script, `analysis.NAME`, or `analysis.NAME.table` where that is a folder.

    Raises InvalidInput when there is no such script.
    """
    try:
        module = importlib.import_module(f"analysis.{name}")
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"analysis.{name}.table")
        return module.make
    except (ModuleNotFoundError, AttributeError) as error:
        raise InvalidInput(f"analysis/{name} is no script with a make(plan) ({first_line(error)})") from error


def _agreement(made: script.Artefact, profile: str) -> str:
    """How far the first table agrees with the published one; empty where nothing is published."""
    try:
        found = published.compare(made.tables[0], profile, made.compared)
    except InvalidInput as error:
        return first_line(error)
    return found.summary if found.notes else ""
