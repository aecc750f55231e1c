"""How far every artefact of a profile is: `python -m experiments.status --profile embedded`.

It reads plans and cells' folders alone, so that it answers within a second and disturbs no run. How long the
rest takes is estimated from the measured cells that are most alike.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from analysis.cli import check_profile, profile_parser
from analysis.load import EXPERIMENTS, digest, part_names, plan_files
from experiments.store import NO_TREE, PARTIAL, STATUS, CellStore, Status
from resispec.errors import InvalidInput, first_line, in_one_line
from resispec.files import read_json

STATES = ("done", "running", "failed", "interrupted", "damaged", "missing")
"""In the order of print."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell that a plan asks for.

    key: names it among all cells. alike: task, audit or not, decoder, tree: what its time depends on, the
    most important first. status: one that says "running" is, what a kill left is "interrupted". num_left:
    prompts that it has still to measure. is_timed: no other such cell may run beside it. written: when the
    status was, in nanoseconds; 0 without one.
    """

    key: str
    alike: tuple[str, ...]
    num_prompts: int
    status: Status
    num_left: int
    is_timed: bool
    written: int = 0


def planned_cell(entry: Mapping[str, Any], raw: Path) -> PlannedCell:
    """A cell from its entry in a plan. raw: the folder of the cells' folders.

    Raises LookupError, TypeError or ValueError for what is no entry.
    """
    labels, cell_id = entry["labels"], str(entry["cell_id"])
    names = [entry.get("task"), labels.get("audit"), labels["decoder"], labels.get("tree")]
    alike, num_prompts = tuple(map(str, names)), int(entry.get("num_prompts", 1))
    is_timed = bool(entry.get("is_timed", False))
    if cell_id == NO_TREE:
        key = json.dumps([labels, num_prompts, entry.get("tree_file")], sort_keys=True)
        status = Status("missing", "its tree is not found yet")
        return PlannedCell(key, alike, num_prompts, status, num_prompts, is_timed)
    folder = raw / cell_id
    status = _status(CellStore(folder))
    if status.state == "done":
        num_left = 0
    else:
        partial = folder / PARTIAL
        num_left = num_prompts - (partial.read_bytes().count(b"\n") if partial.is_file() else 0)
    file = folder / STATUS
    written = file.stat().st_mtime_ns if file.is_file() else 0
    return PlannedCell(cell_id, alike, num_prompts, status, max(0, num_left), is_timed, written)


def _status(store: CellStore) -> Status:
    """A cell's status; one that says "running" is believed while somebody holds the folder's lock."""
    status = store.status()
    if status.state != "running":
        return status
    try:
        with store.locked():
            return Status("interrupted", "killed")
    except OSError:  # held by whoever measures it (TimeoutError), or not ours to try
        return status


class Estimate:
    """Seconds a prompt, by the cells that are measured: the median of those most alike."""

    def __init__(self, cells: Iterable[PlannedCell]) -> None:
        self._rates: dict[tuple[str, ...], list[float]] = {}
        for cell in cells:
            if cell.status.state == "done" and cell.status.seconds > 0:
                for length in range(len(cell.alike) + 1):
                    rates = self._rates.setdefault(cell.alike[:length], [])
                    rates.append(cell.status.seconds / cell.num_prompts)

    def seconds(self, cells: Iterable[PlannedCell], num_workers: int) -> float | None:
        """How long workers take to finish cells, of which one at a time may be timed.

        None when nothing was measured.
        """
        left = [cell for cell in cells if cell.num_left]
        if left and not self._rates:
            return None
        found = [(cell.num_left * self._seconds_a_prompt(cell.alike), cell.is_timed) for cell in left]
        return elapsed(found, num_workers)

    def _seconds_a_prompt(self, alike: tuple[str, ...]) -> float:
        while alike not in self._rates:
            alike = alike[:-1]
        return median(self._rates[alike])


def elapsed(cells: Iterable[tuple[float, bool]], num_workers: int) -> float:
    """How long workers take for cells, each given by its seconds and whether it is timed.

    One timed cell at a time may run.
    """
    found = list(cells)
    return max(sum(one for one, is_timed in found if is_timed), sum(one for one, _ in found) / num_workers)


@dataclass(frozen=True)
class Standing:
    """How far an artefact is.

    states: of STATES those that there are -> number of cells; empty when it is not planned. failures: reason
    -> number of cells. table: "written", "older than its cells" or "not written"; "" for sweeps that are no
    artefact. eta_s: seconds that the rest takes, None when nothing was measured. notes: what is wrong with
    its plans, one line each.
    """

    artefact: str
    states: dict[str, int]
    failures: dict[str, int]
    table: str
    eta_s: float | None
    notes: tuple[str, ...]


def standings(profile: str, results: Path) -> tuple[list[Standing], Standing]:
    """Every artefact, and the sum of all, in which a cell that several ask for counts once.

    Times are for as many workers as are at work now, at least one.
    """
    plans = results / profile / "plans"
    artefacts = sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))
    swept = sorted({path.stem for path in plans.iterdir()} - {*artefacts}) if plans.is_dir() else []
    read = {name: _read(name, profile, results) for name in (*artefacts, *swept)}
    every = {cell.key: cell for cells, _ in read.values() for cell in cells}
    estimate = Estimate(every.values())

    def standing(name: str, cells: Sequence[PlannedCell], notes: Sequence[str]) -> Standing:
        states = Counter(cell.status.state for cell in cells)
        failures = Counter(cell.status.reason for cell in cells if cell.status.state == "failed")
        table = _table(results / profile / f"{name}.csv", cells) if name in artefacts else ""
        eta_s = estimate.seconds(cells, max(1, num_running))
        found = {state: states[state] for state in STATES if states[state]}
        return Standing(name, found, dict(failures.most_common()), table, eta_s, tuple(notes))

    num_running = sum(cell.status.state == "running" for cell in every.values())
    return [standing(name, *found) for name, found in read.items()], standing("all", [*every.values()], ())


def _read(name: str, profile: str, results: Path) -> tuple[list[PlannedCell], list[str]]:
    """The cells of an artefact's plans, each once, and what is wrong with the plans."""
    cells, changed, notes = {}, set(), []
    files, raw = plan_files(name, profile, results), results / "raw" / profile
    for file in files:
        try:
            content = read_json(file)
            found = [planned_cell(entry, raw) for entry in content["cells"]]
            changed |= {source for source, then in content["sources"].items() if digest(source) != then}
        except (InvalidInput, LookupError, TypeError, ValueError, AttributeError) as error:
            notes.append(f"plan {file} is damaged ({first_line(error)})")
            continue
        cells |= {cell.key: cell for cell in found}
    if changed:
        notes.append(f"planned before {', '.join(sorted(changed))} changed; running it plans anew")
    missing = {*part_names(EXPERIMENTS / f"{name}.yaml")} - {file.stem for file in files}
    if files and missing:
        notes.append(f"not planned: {', '.join(sorted(missing))}")
    return [*cells.values()], notes


def _table(path: Path, cells: Sequence[PlannedCell]) -> str:
    if not path.is_file():
        return "not written"
    newest = max((cell.written for cell in cells if cell.status.state == "done"), default=0)
    return "written" if path.stat().st_mtime_ns >= newest else "older than its cells"


def text(found: Sequence[Standing], whole: Standing, profile: str, results: Path) -> str:
    """The printed lines: one for all, one an artefact, and what keeps it from being done."""
    width = max(len(one.artefact) for one in found)
    options = f"PROFILE={profile}" + (f" RESULTS={results}" if results != Path("results") else "")
    lines = [f"profile {profile}: {_progress(whole) or 'nothing is planned'}"]
    for one in found:
        hint = f": make reproduce-{one.artefact} {options}" if one.table else ""
        progress = _progress(one) or f"not planned{hint}"
        table = f"; table {one.table}" if one.states and one.table else ""
        lines.append(f"  {one.artefact:{width}}  {progress}{table}")
        below = [f"{count} failed: {reason}" for reason, count in one.failures.items()]
        lines += [f"  {'':{width}}    {line}" for line in (*below, *one.notes)]
    return "\n".join(lines) + "\n"


def _progress(one: Standing) -> str:
    """A line like "20/30 done, 1 running, 9 missing; about 6 min left"; nothing for what is not planned."""
    if not one.states:
        return ""
    others = [f", {count} {state}" for state, count in one.states.items() if state != "done"]
    counted = f"{one.states.get('done', 0)}/{sum(one.states.values())} done{''.join(others)}"
    if not others:
        return counted
    if one.eta_s is None:
        return f"{counted}; time left unknown, no cell is measured"
    return f"{counted}; about {duration(one.eta_s)} left"


def duration(seconds: float) -> str:
    """A duration like "6 min" or "2 h 5 min"."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def show(profile: str, results: Path, as_json: bool) -> int:
    """Print how far the artefacts of a profile are; returns the exit code 0. Raises InvalidInput."""
    check_profile(profile)
    found, whole = standings(profile, results)
    if as_json:
        content = {"profile": profile, "results": str(results), "all": asdict(whole)}
        content["artefacts"] = [asdict(one) for one in found]
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        sys.stdout.write(text(found, whole, profile, results))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = profile_parser("experiments.status", __doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="for programs")
    chosen = parser.parse_args(arguments)
    return in_one_line(lambda: show(chosen.profile, chosen.results, chosen.json), "stopped")


if __name__ == "__main__":
    sys.exit(main())
