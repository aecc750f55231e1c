"""What an artefact is made of: the plan that says which cells it asked for, and the rows of these cells."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import labels
from resispec.errors import InvalidInput, first_line
from resispec.files import damage, read_json

ROOT = Path(__file__).resolve().parent.parent
"""The repository, to which the files that a plan was made from are relative."""
EXPERIMENTS = ROOT / "conf" / "experiment"
LABELS = ("pair", "dataset", "temperature", "decoder", "tree", "verifier")
OPTIONAL_LABELS = ("tree", "verifier")
"""An autoregressive cell has neither: both are then empty."""
SETTING = ("pair", "temperature", "dataset")
"""What is the same for rows that are compared; they are ordered by it."""
IDENTITY = ("prompt_index", "prompt_id", "seed")
STATES = ("done", "failed", "interrupted")
AGAIN = "running the sweep again measures it anew"


@dataclass(frozen=True)
class Request:
    """One cell that a sweep asked for.

    labels: LABELS and whatever else the sweep varied, as text, the temperature as a number. part: of the
    artefact, or "". is_audit: whether it audits the cell of the same labels. tree_file: the file of its tree,
    where it has one.
    """

    cell_id: str
    labels: dict[str, Any]
    part: str
    is_audit: bool
    tree_file: Path | None


@dataclass(frozen=True)
class Plan:
    """What an artefact asked for, over all its parts. results: the folder of raw/ and PROFILE/.

    command: what makes the artefact from nothing. stale: one line for every part that is older than its
    configuration.
    """

    artefact: str
    profile: str
    results: Path
    requests: tuple[Request, ...]
    command: str
    stale: tuple[str, ...]

    def parts(self, wanted: Callable[[str], bool]) -> Plan:
        """The same plan with the requests of some parts only."""
        return replace(self, requests=tuple(one for one in self.requests if wanted(one.part)))


def read_plan(artefact: str, profile: str, results: Path) -> Plan:
    """Read the plan of an artefact: ARTEFACT.json and every ARTEFACT/PART.json in results/PROFILE/plans.

    Raises InvalidInput, one line with the command that makes the plan, when there is none or it cannot be
    read.
    """
    folder = results / profile / "plans"
    make = f"make reproduce-{artefact} PROFILE={profile}"
    make += "" if results == Path("results") else f" RESULTS={shlex.quote(str(results))}"
    single = folder / f"{artefact}.json"
    files = [single] * single.is_file() + sorted((folder / artefact).glob("*.json"))
    if not files:
        raise InvalidInput(f"there is no plan {single}, which says what cells to read; `{make}` makes it")
    requests: dict[str, Request] = {}
    commands, stale = [], []
    for file in files:
        try:
            content = read_json(file)
            part, found = str(content["part"]), [_request(one, content["part"]) for one in content["cells"]]
            if content["artefact"] != artefact:
                raise ValueError(f"it is the plan of {content['artefact']!r}")
            changed = [name for name, digest in content["sources"].items() if _digest(name) != digest]
            commands.append(str(content["command"]))
        except (InvalidInput, LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise InvalidInput(f"plan {file} is damaged ({reason}); `{make}` makes it again") from error
        requests |= {repr((one.cell_id, one.labels, one.part, one.is_audit)): one for one in found}
        if changed:
            name = f"{artefact}, part {part}," if part else artefact
            stale.append(f"The plan of {name} is older than {', '.join(changed)}; `{make}` makes it anew.")
    made = {file.stem for file in files if file != single}
    for missing in sorted({path.stem for path in (EXPERIMENTS / artefact).glob("*.yaml")} - made):
        stale.append(f"{artefact} has a part {missing} that no plan asks for yet; `{make}` makes it.")
    command = _command(commands, artefact, profile)
    return Plan(artefact, profile, results, tuple(requests.values()), command, tuple(stale))


def _request(entry: Mapping[str, Any], part: str) -> Request:
    given = dict(entry["labels"])
    is_audit = bool(given.pop("audit", False))
    text = {name: str(given.pop(name)) for name in LABELS if name not in OPTIONAL_LABELS}
    text |= {name: str(given.pop(name, "")) for name in OPTIONAL_LABELS}
    found = {name: text[name] for name in LABELS} | {"temperature": float(text["temperature"])}
    found |= {name: str(given[name]) for name in sorted(given)}
    file = entry.get("tree_file")
    return Request(str(entry["cell_id"]), found, part, is_audit, Path(file) if file else None)


def _digest(name: str) -> str | None:
    file = ROOT / name
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def _command(commands: Iterable[str], artefact: str, profile: str) -> str:
    """What makes the artefact: `make`, unless a sweep was told more than its experiment and profile."""
    usual = ("experiment=", "profile=", "results=", "hydra", "-m", "--multirun")
    told = [
        command
        for command in dict.fromkeys(commands)
        if any(not word.startswith(usual) for word in shlex.split(command)[3:])
    ]
    if not told:
        return f"make reproduce-{artefact} PROFILE={profile}"
    return " && ".join([*told, f"python -m analysis.{artefact} --profile {profile}"])


@dataclass(frozen=True)
class Results:
    """The cells of a plan and what they measured.

    cells: one row a request, in the order of print: cell_id, `keys`, part, is_audit, status ("done",
    "failed", "interrupted" or "missing"), reason, device, commit. rows: by cell_id, the prompts of the cells
    that are done, by prompt_index. keys: the labels that tell requests apart, LABELS first.
    """

    cells: pd.DataFrame
    rows: dict[str, pd.DataFrame]
    keys: tuple[str, ...]

    @property
    def more(self) -> tuple[str, ...]:
        """The keys beyond LABELS: what else the sweep varied."""
        return self.keys[len(LABELS) :]


def load(plan: Plan, columns: Iterable[str]) -> Results:
    """Read the cells of a plan.

    columns: what every row must have beside its identity. Raises InvalidInput, one line naming the cell, when
    a finished cell is damaged, its rows lack a column, or cells that are compared did not measure the same
    prompts with the same seeds.
    """
    keys = tuple(dict.fromkeys([*LABELS, *(name for one in plan.requests for name in one.labels)]))
    folder, states, rows = plan.results / "raw" / plan.profile, {}, {}
    for cell_id in dict.fromkeys(one.cell_id for one in plan.requests):
        states[cell_id] = read_state(folder / cell_id)
        if states[cell_id]["status"] == "done":
            rows[cell_id] = _read_rows(folder / cell_id, (*IDENTITY, *columns))
    entries = [
        {"cell_id": one.cell_id, **{name: one.labels.get(name, "") for name in keys}, "part": one.part}
        | {"is_audit": one.is_audit, **states[one.cell_id]}
        for one in plan.requests
    ]
    names = ["cell_id", *keys, "part", "is_audit", "status", "reason", "device", "commit"]
    cells = pd.DataFrame(entries, columns=names).astype({"is_audit": bool})
    cells = cells.drop_duplicates(["cell_id", *keys, "is_audit"])
    results = Results(_ordered(cells, keys), rows, keys)
    _check_same_prompts(results)
    return results


def read_state(folder: Path) -> dict[str, str]:
    """The status and reason of a cell, and of a finished one the device and the commit.

    Raises InvalidInput when a file of a finished cell is not what was written.
    """
    found = {"status": "missing", "reason": "", "device": "", "commit": ""}
    if not any((folder / name).exists() for name in ("status.json", "rows.jsonl")):
        return found
    status = _read_json(folder, "status.json")
    if status.get("state") == "running":
        return found | {"status": "interrupted", "reason": "running, or killed, when it was read"}
    if status.get("state") not in STATES:
        raise InvalidInput(f"cell {folder.name}: status.json names no state of a cell; {AGAIN}")
    reason = " ".join(str(status.get("reason") or "").split())
    if status["state"] != "done":
        return found | {"status": status["state"], "reason": reason}
    if problem := damage(folder, status.get("files")):
        raise InvalidInput(f"cell {folder.name}: status.json says that {problem}; {AGAIN}")
    if _read_json(folder, "cell.json").get("cell_id") != folder.name:
        raise InvalidInput(f"cell {folder.name}: cell.json describes another cell; {AGAIN}")
    provenance = _read_json(folder, "provenance.json")
    commit = str(provenance.get("git_commit") or "")[:10] or "unknown"
    commit += " (changed)" if provenance.get("git_is_dirty") else ""
    return {"status": "done", "reason": reason, "device": str(provenance.get("device", "")), "commit": commit}


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        return read_json(folder / name)
    except InvalidInput as error:
        raise InvalidInput(f"cell {folder.name}: {error}; {AGAIN}") from error


def _read_rows(folder: Path, columns: Iterable[str]) -> pd.DataFrame:
    """The rows of a cell that is done, by prompt_index."""
    try:
        lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [dict(json.loads(line)) for line in lines]
    except (OSError, TypeError, ValueError, RecursionError) as error:
        reason = first_line(error)
        raise InvalidInput(f"cell {folder.name}: rows.jsonl cannot be read ({reason}); {AGAIN}") from error
    missing = [name for name in columns if any(name not in row for row in rows)]
    if missing:
        names = ", ".join(missing)
        raise InvalidInput(f"cell {folder.name}: its rows lack {names}; another version or task wrote them")
    frame = pd.DataFrame(rows)
    if frame.empty or frame.prompt_index.duplicated().any() or frame.prompt_id.duplicated().any():
        raise InvalidInput(f"cell {folder.name}: rows.jsonl is empty or holds a prompt twice; {AGAIN}")
    return frame.sort_values("prompt_index", ignore_index=True)


def _ordered(cells: pd.DataFrame, keys: tuple[str, ...]) -> pd.DataFrame:
    """The cells in the order of print; within a setting the autoregressive baseline is first."""
    order = [*SETTING, *keys[len(LABELS) :], "decoder", "tree", "verifier"]
    ranks = pd.DataFrame(index=cells.index)
    for key in order:
        seen = {value: place for place, value in enumerate(dict.fromkeys(cells[key]))}
        ranks[key] = [labels.rank(key, value) if key in LABELS else seen[value] for value in cells[key]]
    return cells.loc[ranks.sort_values(order, kind="stable").index].reset_index(drop=True)


def _check_same_prompts(results: Results) -> None:
    """Raise InvalidInput unless cells of one pair and data set measured the same prompts and seeds."""
    cells = results.cells[(results.cells.status == "done") & ~results.cells.is_audit]
    for _, group in cells.groupby(["pair", "dataset", *results.more], sort=False):
        prompts = {name: results.rows[name][list(IDENTITY)].values.tolist() for name in group.cell_id}
        first = group.cell_id.iloc[0]
        for cell_id, found in prompts.items():
            if len(found) != len(prompts[first]):
                sizes = f"{len(found)} prompts; {first}, compared with it, has {len(prompts[first])}"
                raise InvalidInput(f"cell {cell_id}: has {sizes}")
            for own, other in zip(found, prompts[first], strict=True):
                if own != other:
                    whose = f"where {first}, compared with it, has {other} (index, id, seed)"
                    raise InvalidInput(f"cell {cell_id}: measured prompt {own} {whose}")
