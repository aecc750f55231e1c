"""How far every artefact of a profile is: `python -m experiments.status --profile embedded`.

It reads plans and cells' folders alone, so that it answers within a second and disturbs no run. How long the
rest takes is estimated from the measured cells that are most alike.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from experiments.commands import check_profile, in_one_line, profile_parser
from experiments.planned import Estimate, PlannedCell, planned_cell
from resispec.errors import InvalidInput, first_line
from resispec.files import read_json

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = ROOT / "conf" / "experiment"
STATES = ("done", "running", "failed", "interrupted", "damaged", "missing")
"""In the order of print."""


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
    plans, raw = results / profile / "plans", results / "raw" / profile
    artefacts = sorted(path.stem for path in EXPERIMENTS.iterdir())
    swept = sorted({path.stem for path in plans.iterdir()} - {*artefacts}) if plans.is_dir() else []
    read = {name: _read(name, plans, raw) for name in (*artefacts, *swept)}
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


def _read(name: str, plans: Path, raw: Path) -> tuple[list[PlannedCell], list[str]]:
    """The cells of an artefact's plans, each once, and what is wrong with the plans."""
    single, cells, changed, notes = plans / f"{name}.json", {}, set(), []
    files = [single] * single.is_file() + sorted((plans / name).glob("*.json"))
    for file in files:
        try:
            content = read_json(file)
            found = [planned_cell(entry, raw) for entry in content["cells"]]
            changed |= {source for source, digest in content["sources"].items() if _digest(source) != digest}
        except (InvalidInput, LookupError, TypeError, ValueError, AttributeError) as error:
            notes.append(f"plan {file} is damaged ({first_line(error)})")
            continue
        cells |= {cell.key: cell for cell in found}
    if changed:
        notes.append(f"planned before {', '.join(sorted(changed))} changed; running it plans anew")
    missing = {path.stem for path in (EXPERIMENTS / name).glob("*.yaml")} - {file.stem for file in files}
    if files and missing:
        notes.append(f"not planned: {', '.join(sorted(missing))}")
    return [*cells.values()], notes


@lru_cache(maxsize=256)
def _digest(source: str) -> str | None:
    file = ROOT / source
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def _table(path: Path, cells: Sequence[PlannedCell]) -> str:
    if not path.is_file():
        return "not written"
    newest = max((cell.written for cell in cells if cell.status.state == "done"), default=0)
    return "written" if path.stat().st_mtime_ns >= newest else "older than its cells"


def text(found: Sequence[Standing], whole: Standing, profile: str, results: Path) -> str:
    """What the command prints: a line for all, one an artefact, and what keeps it from being done."""
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
    """As "20/30 done, 1 running, 9 missing; about 6 min left"; nothing for what is not planned."""
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
    """As "6 min" or "2 h 5 min"."""
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
