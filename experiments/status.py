"""The progress of every artefact of a profile: `resispec status`.

The command reads only plans and cells' folders, so that it answers within a second and disturbs no
run. It estimates the time left from the most similar cells that this machine has measured; where it
has measured none, from those of another one, which the line then names.
"""

import json
import sys
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from analysis.cli import check_profile, check_results, profile_parser
from analysis.load import EXPERIMENTS, Status, elsewhere
from experiments.states import States
from experiments.store import NO_TREE, PARTIAL, PROVENANCE, STATUS, CellStore
from resispec.errors import InvalidInput, in_one_line
from resispec.files import read_json
from resispec.machine import device_names

SHOWN = ("done", "running", "failed", "interrupted", "damaged", "stale", "missing")
"""States of cells, in the order in which they are printed."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell that a plan asks for.

    alike: the task, whether it is an audit, the decoder and the tree, on which its time depends,
    the most important first. status: "running" only while a process measures the cell,
    "interrupted" after a kill. num_left: prompts that are not measured yet. is_timed: whether no
    other timed cell may run beside it. written: when the status was written, in nanoseconds; 0
    without a status. device: the name of the device that measured it; "" before.
    """

    alike: tuple[str, ...]
    num_prompts: int
    status: Status
    num_left: int
    is_timed: bool
    written: int = 0
    device: str = ""


def planned_cell(entry: Mapping[str, Any], states: States) -> PlannedCell:
    """A cell from its entry in a plan. states: those of its profile."""
    labels, folder = entry["labels"], states.raw / entry["cell_id"]
    names = [entry.get("task"), labels.get("audit"), labels["decoder"], labels.get("tree")]
    status = states.status(entry["cell_id"])
    if status.state == "running":
        # held while it is measured, or not ours to lock
        with suppress(OSError), CellStore(folder).locked():
            status = Status("interrupted", "killed")
    num_left = num_prompts = int(entry.get("num_prompts", 1))
    if status.state == "done":
        num_left = 0
    elif (folder / PARTIAL).is_file():
        num_left = max(0, num_prompts - (folder / PARTIAL).read_bytes().count(b"\n"))
    written = (folder / STATUS).stat().st_mtime_ns if (folder / STATUS).is_file() else 0
    is_timed = bool(entry.get("is_timed", False))
    device = ""
    if status.state == "done":
        device = str(read_json(folder / PROVENANCE).get("device", ""))
    return PlannedCell(
        tuple(map(str, names)), num_prompts, status, num_left, is_timed, written, device
    )


def _key(entry: Mapping[str, Any]) -> str:
    """The key of a plan's cell: its id, or a text of its labels if its tree is not found yet."""
    if entry["cell_id"] != NO_TREE:
        return str(entry["cell_id"])
    return json.dumps(
        [entry["labels"], entry.get("num_prompts"), entry.get("tree_file")], sort_keys=True
    )


@dataclass(frozen=True)
class Estimate:
    """Seconds until workers finish cells; None without a measured cell.

    measured_by: the devices of the cells whose times were taken, if none of this machine's was
    among them; else "".
    """

    seconds: float | None
    measured_by: str = ""


def time_left(
    cells: Iterable[PlannedCell],
    measured: Iterable[PlannedCell],
    num_workers: int,
    here: Container[str],
) -> Estimate:
    """The time until workers finish cells, by medians of the most similar measured ones.

    here: names of this machine's devices. Cells of others serve only if there are none of these.
    """
    with_times = [
        cell for cell in measured if cell.status.state == "done" and cell.status.seconds > 0
    ]
    ours = [cell for cell in with_times if cell.device in here]
    rates: dict[tuple[str, ...], list[float]] = {}
    for cell in ours or with_times:
        for length in range(len(cell.alike) + 1):
            rates.setdefault(cell.alike[:length], []).append(cell.status.seconds / cell.num_prompts)
    rest = [cell for cell in cells if cell.num_left]
    if rest and not rates:
        return Estimate(None)
    seconds = []
    for cell in rest:
        alike = cell.alike
        while alike not in rates:
            alike = alike[:-1]
        seconds.append((cell.num_left * median(rates[alike]), cell.is_timed))
    others = {} if ours or not rest else dict.fromkeys(cell.device for cell in with_times)
    return Estimate(elapsed(seconds, num_workers), ", ".join(filter(None, others)))


def elapsed(cells: Sequence[tuple[float, bool]], num_workers: int) -> float:
    """Seconds that workers take for cells of (seconds, is_timed), one timed cell at a time."""
    timed = sum(seconds for seconds, is_timed in cells if is_timed)
    return max(timed, sum(seconds for seconds, _ in cells) / num_workers)


@dataclass(frozen=True)
class Standing:
    """The progress of an artefact.

    states: state from SHOWN -> number of cells, if not 0; empty when it is not planned. failures:
    reason -> number of cells. table: "written", "older than its cells" or "not written"; "" for
    sweeps that are no artefact. eta_s: seconds that the rest takes, None when nothing was measured.
    eta_by: devices of another machine that the estimate comes from; "" if it is of this one. notes:
    problems of its plans, one line each.
    """

    artefact: str
    states: dict[str, int]
    failures: dict[str, int]
    table: str
    eta_s: float | None
    eta_by: str
    notes: tuple[str, ...]


def standings(profile: str, results: Path) -> tuple[list[Standing], Standing]:
    """The progress of every artefact, and of all cells, each once.

    Times are for the workers that are busy, or for one.
    """
    states = States(profile, results)
    cells: dict[str, PlannedCell] = {}
    keys: dict[str, list[str]] = {}
    notes: dict[str, tuple[str, ...]] = {}
    for name, plan in states.plans():
        if isinstance(plan, InvalidInput):
            keys[name], notes[name] = [], (str(plan),)
            continue
        entries = {_key(request.entry): request.entry for request in plan.requests}
        for key, entry in entries.items():
            if key not in cells:
                cells[key] = planned_cell(entry, states)
        keys[name], notes[name] = list(entries), (*plan.stale, *plan.replaced_trees)
    num_workers, here = _num_workers(cells.values()), device_names()
    artefacts = sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))
    single = []
    for name in dict.fromkeys((*artefacts, *keys)):
        own = [cells[key] for key in keys.get(name, ())]
        table = _table(results / profile / f"{name}.csv", own, name in artefacts)
        left = time_left(own, cells.values(), num_workers, here)
        single.append(_standing(name, own, table, left, notes.get(name, ())))
    left = time_left(cells.values(), cells.values(), num_workers, here)
    return single, _standing("all", cells.values(), "", left)


def _num_workers(cells: Iterable[PlannedCell]) -> int:
    """How many workers are busy, 1 if none is; timed cells share one."""
    running = [cell.is_timed for cell in cells if cell.status.state == "running"]
    return max(1, running.count(False) + any(running))


def _table(csv: Path, cells: Iterable[PlannedCell], is_artefact: bool) -> str:
    """The state of a table in words, see `Standing`."""
    if not csv.is_file():
        return "not written" if is_artefact else ""
    newest = max((cell.written for cell in cells if cell.status.state == "done"), default=0)
    return "written" if csv.stat().st_mtime_ns >= newest else "older than its cells"


def _standing(
    name: str,
    cells: Collection[PlannedCell],
    table: str,
    left: Estimate,
    notes: tuple[str, ...] = (),
) -> Standing:
    states = Counter(cell.status.state for cell in cells)
    failures = Counter(cell.status.reason for cell in cells if cell.status.state == "failed")
    ordered = {state: states[state] for state in SHOWN if states[state]}
    reasons = dict(failures.most_common())
    return Standing(name, ordered, reasons, table, left.seconds, left.measured_by, notes)


def text(standings: Sequence[Standing], whole: Standing, profile: str, results: Path) -> str:
    """The printed lines: one for all artefacts, and one for each with what keeps it undone."""
    width = max(len(standing.artefact) for standing in standings)
    options = f"PROFILE={profile}{elsewhere(results)}"
    lines = [f"profile {profile}: {_progress(whole) or 'nothing is planned'}"]
    for standing in standings:
        hint = f": make reproduce-{standing.artefact} {options}" if standing.table else ""
        progress = _progress(standing) or f"not planned{hint}"
        table = f"; table {standing.table}" if standing.states and standing.table else ""
        lines.append(f"  {standing.artefact:{width}}  {progress}{table}")
        details = [f"{count} failed: {reason}" for reason, count in standing.failures.items()]
        lines += [f"  {'':{width}}    {line}" for line in (*details, *standing.notes)]
    return "\n".join(lines) + "\n"


def _progress(standing: Standing) -> str:
    """A line like "20/30 done, 1 running, 9 missing; about 6 min left"; "" for no plan."""
    if not standing.states:
        return ""
    others = [f", {count} {state}" for state, count in standing.states.items() if state != "done"]
    counts = (
        f"{standing.states.get('done', 0)}/{sum(standing.states.values())} done{''.join(others)}"
    )
    if not others:
        return counts
    if standing.eta_s is None:
        return f"{counts}; time left unknown, no cell is measured"
    source = f", by the times of {standing.eta_by}" if standing.eta_by else ""
    return f"{counts}; about {duration(standing.eta_s)} left{source}"


def duration(seconds: float) -> str:
    """A duration like "6 min" or "2 h 5 min"."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = profile_parser("experiments.status", __doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    check_profile(options.profile, options.results)
    check_results(options.results)
    artefacts, total = standings(options.profile, options.results)
    if options.json:
        content = {
            "profile": options.profile,
            "results": str(options.results),
            "all": asdict(total),
        }
        content["artefacts"] = [asdict(standing) for standing in artefacts]
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        sys.stdout.write(text(artefacts, total, options.profile, options.results))


if __name__ == "__main__":
    sys.exit(main())
