"""Plans and cells on the disk: the cells that an artefact asks for, their states, and their rows.

This module reads both for all that shows results: tables, the page, `experiments.status` and W&B
read through it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import SWEEP, labels
from analysis.labels import Label, read_yaml
from resispec.code_digest import changed_files, code_digests, commit_digests
from resispec.errors import InvalidInput, first_line
from resispec.files import damage, read_json, read_sealed
from resispec.sampling import FILTERS, Warp

if TYPE_CHECKING:
    import pandas as pd  # `experiments.status` reads plans without pandas

ROOT = Path(__file__).resolve().parent.parent
"""The repository; the paths of the files that a plan was made from are relative to it."""
EXPERIMENTS = ROOT / "conf" / "experiment"
LABELS = ("pair", "dataset", "temperature", "decoder", "tree", "verifier")
SETTING = ("pair", "temperature", "dataset")
"""Labels that are equal in all rows that are compared; tables are ordered by them first."""
FILTERS_OFF = {f"sampling.{name}": getattr(Warp, name) for name in FILTERS}
"""The keys of filters, and the values with which they are off.

Labels name a filter that is on or varied.
"""
APART = ("task", "of")
"""Facts that tell cells of a sweep of one's own apart whose labels are the same.

They are a cell's task, artefact and part; within a part of an artefact labels suffice.
"""
IDENTITY = ("prompt_index", "prompt_id", "seed")
LIMITS = ("max_new_tokens", "max_length", "ignore_eos")
"""The settings of sampling that say how long a text may get."""
SECONDS = "_s"
"""Ending of the names of fields of rows with seconds."""
TREE_SHA256 = "tree_sha256"
"""Key of a plan's entry with the checksum of the file of its tree; None until it is found."""
UNPACKED = "resispec-published-"
"""Prefix of the temporary folder of an unpacked archive, a results folder of one artefact."""
RUNS = "runs"
"""Beginning of the names of parts that measure an artefact's cells again with other base seeds.

Only `part=all`, or their own names, ask for them.
"""
COMPARED = (
    "temperature",
    "seed",
    "num_prompts",
    "first_prompt",
    "prompt_tokens",
    "device",
    "dtype",
)
"""Single values of a cell's configuration to compare with its labels, where these have them."""
SEALED = ("cell.json", "provenance.json", "rows.jsonl")
"""The files of a complete cell whose checksums are in its status.json."""


@dataclass(frozen=True)
class Status:
    """A cell's state.

    state: "running", "done", "failed", "interrupted", "missing" if it never ran, "damaged", or
    "stale". The files of a damaged cell must not be used. A stale cell is complete, but was
    measured with other code of its verifier, draws or drafter than the present one. reason: one
    line for people, or "". seconds: the duration of the last run; 0 of a complete cell that was
    resumed.

    `read_status` says what the folder says. Of that, tables (`Plan.status`) print stale cells as
    done, with a note, and running ones as interrupted; a run (`store.status_of`) keeps a stale cell
    as done with `reuse=true`, else measures it again, as it does a complete one whose own files are
    gone; `experiments.status` takes a running cell whose lock nobody holds for interrupted.
    """

    state: str
    reason: str = ""
    seconds: float = 0.0


def read_status(folder: Path, config: Mapping[str, Any] | None = None) -> Status:
    """The state of the cell in a folder.

    The files of a complete cell are compared with their checksums, the code that it was measured
    with is compared with the present code, and the id in any cell with its folder. config: see
    `changed_code`.
    """
    path, rows = folder / "status.json", folder / "rows.jsonl"
    if not path.exists():
        return Status("damaged", "status.json is missing") if rows.exists() else Status("missing")
    try:
        content = read_json(path)
        if "state" not in content:
            raise InvalidInput("status.json names no state of a cell")
        if content["state"] == "done" and (problem := damage(folder, content.get("files"), SEALED)):
            raise InvalidInput(f"status.json says that {problem}")
        cell = read_cell(folder)
        if problem := foreign(folder, cell):
            raise InvalidInput(problem)
    except InvalidInput as error:
        return Status("damaged", str(error))
    reason = " ".join(str(content.get("reason") or "").split())
    seconds = float(content.get("seconds") or 0.0)
    if content["state"] == "done" and (
        changed := changed_code(folder, config or cell.get("config"))
    ):
        return Status("stale", f"its code has changed: {', '.join(changed)}", seconds)
    return Status(content["state"], reason, seconds)


def changed_code(folder: Path, config: Mapping[str, Any] | None = None) -> list[str]:
    """The files of code that differ from those that the cell in a folder was measured with.

    Empty if the cell does not say what code that was, as those of earlier versions. config: the
    configuration that names the present code; by default the one that was measured.
    """
    recorded = recorded_code(folder)
    if not recorded:
        return []
    with suppress(InvalidInput):
        config = config or read_cell(folder).get("config")
    return changed_files(recorded, code_digests(config)) if config else []


def recorded_code(folder: Path) -> dict[str, str]:
    """Digests of the code that the cell in a folder was measured with; empty if it does not say."""
    with suppress(InvalidInput):
        facts = read_json(folder / "provenance.json")
        if isinstance(code := facts.get("code"), dict):
            return code | commit_digests(facts.get("model_commits") or {})
    return {}


def read_cell(folder: Path) -> dict[str, Any]:
    """The content of `cell.json`, which a cell that never began does not have: then its id alone.

    Raises InvalidInput when the file cannot be read.
    """
    path = folder / "cell.json"
    return read_json(path) if path.exists() else {"cell_id": folder.name}


def foreign(folder: Path, cell: Mapping[str, Any]) -> str | None:
    """The difference between a folder's name and its cell's id, in words; None if there is none.

    cell: the content of its `cell.json`, see `read_cell`.
    """
    cell_id = cell.get("cell_id")
    return (
        None
        if cell_id == folder.name
        else f"cell.json is that of cell {cell_id}, not of {folder.name}"
    )


@dataclass(frozen=True)
class Request:
    """One cell that a sweep asked for.

    labels: LABELS and the other keys that the sweep varied: a `Label` for each group, the
    temperature as a number, others as text. part: the part of the artefact, or "". is_audit:
    whether it audits the cell with the same labels. tree_file: the file of its tree, or None.
    is_other_run: whether it is a further run of another cell of its artefact, with another base
    seed. entry: its entry in the plan, for estimates.
    """

    cell_id: str
    labels: dict[str, Any]
    part: str
    is_audit: bool
    tree_file: Path | None
    is_other_run: bool = False
    entry: Mapping[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """The name of the class of its task; "" in plans of earlier versions."""
        return str(self.entry.get("task", ""))

    @property
    def of(self) -> str:
        """Artefact and part ("figure3/specinfer") of a cell in a sweep of one's own; else ""."""
        return str(self.entry.get("of", ""))

    @property
    def texts(self) -> dict[str, Any]:
        """The labels as CSVs have them, in types that JSON has, too."""
        return {
            key: str(value) if isinstance(value, Label) else value
            for key, value in self.labels.items()
        }

    @classmethod
    def read(cls, entry: Mapping[str, Any], part: str = "", trees: Path = Path()) -> Request:
        """The request of a plan's entry.

        trees: the folder of searched trees beside the plan, which may have been copied with it: a
        searched tree is taken from there, if it is there. Raises LookupError, TypeError or
        ValueError for a damaged entry.
        """
        cell_id = entry["cell_id"]
        # the id names a folder
        if not isinstance(cell_id, str) or not re.fullmatch(r"[^/.][^/]*", cell_id):
            raise ValueError(f"cell_id is {cell_id!r}; allowed: the name of a cell's folder")
        # an autoregressive cell has neither
        values = {"tree": "", "verifier": "", **entry["labels"]}
        is_audit = bool(values.pop("audit", False))
        by_name: dict[str, Any] = {
            name: float(values.pop(name)) if name == "temperature" else Label.of(values.pop(name))
            for name in LABELS
        }
        by_name |= {name: str(values[name]) for name in sorted(values)}
        file = Path(entry["tree_file"]) if entry.get("tree_file") else None
        if file and file.parent.name == trees.name and (trees / file.name).is_file():
            file = trees / file.name
        return cls(cell_id, by_name, part, is_audit, file, part.startswith(RUNS), entry)


def _has_other_tree(request: Request) -> bool:
    """Whether a request's tree file is not the planned one; earlier versions' plans do not say."""
    file, planned = request.tree_file, request.entry.get(TREE_SHA256)
    return bool(planned and file) and sha256_of(file) not in (None, planned)


@dataclass(frozen=True)
class Plan:
    """The requests of all parts of an artefact. results: the folder of raw/ and PROFILE/.

    artefact: its name; "sweep/NAME" for cells of a sweep of one's own. command: the command that
    makes the artefact from nothing. stale: one line for each part that is older than its
    configuration or not planned yet. commands: part -> its command. read: everything that was
    read of the cells, so that it is read once.
    """

    artefact: str
    profile: str
    results: Path
    requests: tuple[Request, ...]
    command: str
    stale: tuple[str, ...]
    commands: Mapping[str, str] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_published(self) -> bool:
        """Whether the plan asks for the published cells."""
        return _is_published(self.results)

    @property
    def replaced_trees(self) -> list[str]:
        """A line about trees that were found anew since their cells were planned, if there are."""
        names = {request.tree_file.name for request in self.requests if _has_other_tree(request)}
        if not names:
            return []
        return [
            f"{listed(sorted(names))} holds another tree than its cells were measured on, of which "
            f"facts are shown; `{self.command}` measures anew."
        ]

    @property
    def outdated(self) -> tuple[str, ...]:
        """The lines of `stale` and of `changed`."""
        return (*self.stale, *self.changed)

    @property
    def changed(self) -> tuple[str, ...]:
        """Lines about trees that were found anew, and about cells measured with other code."""
        cells = dict.fromkeys(request.cell_id for request in self.requests)
        changed = [files for cell_id in cells if (files := self._once(_stale_files, cell_id))]
        if not changed:
            return tuple(self.replaced_trees)
        count = f"{len(changed)} of {len(cells)} cells {'is' if len(changed) == 1 else 'are'} stale"
        names = listed(name for files in changed for name in files)
        return (
            *self.replaced_trees,
            f"{count}: measured with other code of {names}; `{self.command}` measures anew.",
        )

    def only(self, wanted: Callable[[Request], object]) -> Plan:
        """This plan with the wanted requests only."""
        return replace(self, requests=tuple(filter(wanted, self.requests)))

    @property
    def first_runs(self) -> Plan:
        """This plan without further runs of its cells, which are rows of no table but their own."""
        return self.only(lambda request: not request.is_other_run)

    def by_part(self) -> list[Plan]:
        """A plan for each part; cells are compared within their part only."""
        names = dict.fromkeys(request.part for request in self.requests)
        return [self.only(lambda request, name=name: request.part == name) for name in names]

    def status(self, cell_id: str) -> Status:
        """The state of a cell: "done", "failed", "interrupted" or "missing".

        Raises InvalidInput for a damaged cell, such as one whose files are not what was written.
        """
        return self._once(_status, cell_id)

    def prompts(self, cell_id: str) -> pd.DataFrame:
        """The rows of a finished cell by prompt_index.

        `attrs["partial"]` has the fields that some rows lack. Seconds that do not count, since
        other work may have run beside them or they are an audit's, are NaN.
        """
        rows, config = self._once(_prompts, cell_id), self.configuration(cell_id)
        if config.get("audit") or not config.get("timed", True):
            rows[[name for name in rows if name.endswith(SECONDS)]] = math.nan
        return rows

    def provenance(self, cell_id: str) -> dict[str, Any]:
        """The known facts about a cell's measurement, such as device and commit."""
        return self._once(_provenance, cell_id)

    def configuration(self, cell_id: str) -> dict[str, Any]:
        """The configuration that a cell was measured with, by its top-level keys."""
        return self._once(_configuration, cell_id)

    def _once(self, reader: Callable[[Path], Any], cell_id: str) -> Any:
        """A reader's value for a cell's folder, read once; an error names the cell and a remedy."""
        if (reader, cell_id) not in self.read:
            try:
                self.read[reader, cell_id] = reader(self.results / "raw" / self.profile / cell_id)
            except InvalidInput as error:
                remedy = "running the sweep again measures it anew"
                raise InvalidInput(f"cell {cell_id}: {error}; {remedy}") from error
        return self.read[reader, cell_id]


def plan_files(artefact: str, profile: str, results: Path) -> list[Path]:
    """The files of a plan, in results/PROFILE/plans: ARTEFACT.json and every ARTEFACT/PART.json.

    artefact: its name, or "*" for the files of all plans. Raises InvalidInput when the folder is
    there and cannot be read.
    """
    folder = results / profile / "plans"
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidInput(f"folder of plans {folder} cannot be read ({error.strerror})") from error
    return [*folder.glob(f"{artefact}.json"), *sorted(folder.glob(f"{artefact}/*.json"))]


def plan_names(profile: str, results: Path) -> list[str]:
    """The names of all plans of a profile, in order: of artefacts, and of sweeps of one's own."""
    folder, files = results / profile / "plans", plan_files("*", profile, results)
    return sorted({path.relative_to(folder).parts[0].removesuffix(".json") for path in files})


def _is_published(results: Path) -> bool:
    return results.name.startswith(UNPACKED)


def read_plan(artefact: str, profile: str, results: Path, files: Sequence[Path] = ()) -> Plan:
    """Read the plan of an artefact.

    artefact: its name, or SWEEP for all sweeps of one's own. files: the files of some of its parts;
    by default all files, see `plan_files`.

    Raises InvalidInput, one line with the command that makes the plan, when the plan is missing or
    cannot be read.
    """
    is_named = any(path.stem == artefact for path in EXPERIMENTS.iterdir())
    make = f"make reproduce-{artefact} PROFILE={profile}"
    maker = f"`{make}{elsewhere(results)}`" if is_named else "its sweep"
    files = files or plan_files(artefact, profile, results)
    if not files:
        path = results / profile / "plans" / f"{artefact}.json"
        raise InvalidInput(
            f"there is no plan {path}, which says what cells to read; {maker} makes it"
        )
    trees = results / profile / "growmap"
    requests: dict[str, Request] = {}
    commands: dict[str, str] = {}
    stale = []
    parts = {*part_names(EXPERIMENTS / f"{artefact}.yaml")} - _left_out(artefact, profile)
    for file in files:
        try:
            content = read_sealed(file)
            part = str(content["part"])
            for request in (Request.read(entry, part, trees) for entry in content["cells"]):
                if artefact == SWEEP:  # its parts are names that users give
                    request = replace(request, is_other_run=False)
                key = (request.cell_id, request.labels, part, request.of, request.is_audit)
                requests[repr(key)] = request
            sources = content["sources"].items()
            changed = [name for name, checksum in sources if checksum_of(name) != checksum]
            commands[part] = str(content["command"])
        except (InvalidInput, LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise InvalidInput(
                f"plan {file} is damaged ({reason}); {maker} makes it again"
            ) from error
        if changed:
            name = f"{artefact}, part {part}," if part else artefact
            # an artefact that has parts now may have been planned as a whole
            is_made = not is_named or not part or part in parts
            omitted = f"{maker} leaves it out: name it (part={part}), or delete {file}"
            remedy = f"{maker} makes it anew" if is_made else omitted
            stale.append(f"The plan of {name} is older than {', '.join(changed)}; {remedy}.")
    for part in sorted(parts - set(commands)):
        stale.append(f"{artefact} has a part {part} that no plan asks for yet; {maker} makes it.")
    command = make if is_named else " && ".join(dict.fromkeys(commands.values()))
    return Plan(
        artefact, profile, results, tuple(requests.values()), command, tuple(stale), commands
    )


def readable_plans(profile: str, results: Path) -> Iterator[Plan]:
    """The plans of a profile by their names, without damaged plans, which `make status` reports."""
    for name in plan_names(profile, results):
        with suppress(InvalidInput):
            yield read_plan(name, profile, results)


def elsewhere(results: Path) -> str:
    """The variable of make for a results folder, after a blank; "" for usual and published ones."""
    is_usual = results == Path("results") or _is_published(results)
    return "" if is_usual else f" RESULTS={shlex.quote(str(results))}"


def part_names(path: Path) -> list[str]:
    """Names of the parts in an artefact's file of conf/experiment; empty without parts or file."""
    content = read_yaml(path) if path.is_file() else {}
    return list(content.get("parts") or ())


def _left_out(artefact: str, profile: str) -> set[str]:
    """The parts of an artefact that a profile leaves out: its `artefacts` set them to null."""
    artefacts: dict[str, Any] = {}
    for source in composed_of(f"profile/{profile}"):
        artefacts |= read_yaml(ROOT / source).get("artefacts") or {}
    names = (name.partition("/") for name, values in artefacts.items() if values is None)
    return {part for name, _, part in names if name == artefact}


def composed_of(name: str, folders: Sequence[str] = ("conf",)) -> list[str]:
    """The files of a configuration: those of its `defaults` in the same group, then its own.

    name: group and option, like "profile/embedded"; without a file of this name there are none.
    folders: those that have groups; the first one with the file counts.
    """
    places = (Path(folder, f"{name}.yaml") for folder in folders)
    path = next((place for place in places if (ROOT / place).is_file()), None)
    if path is None:
        return []
    defaults = read_yaml(ROOT / path).get("defaults") or ()
    inherited = [entry for entry in defaults if isinstance(entry, str)]
    names = [str(Path(name).parent / entry) for entry in inherited]
    return [file for parent in names for file in composed_of(parent, folders)] + [str(path)]


def checksum_of(name: str) -> str | None:
    """The checksum of a file that a plan was made from; None if the file is missing."""
    return sha256_of(ROOT / name)


def sha256_of(file: Path) -> str | None:
    """The checksum of a file; None if it is missing."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def find_sweep(name: str, profile: str, results: Path) -> Plan:
    """The plan of a sweep of one's own, called "sweep/NAME".

    name: the sweep's name, or its beginning. Raises InvalidInput unless there is one such sweep,
    and as `read_plan`.
    """
    folder = results / profile / "plans" / SWEEP
    files = {path.stem: path for path in sorted(folder.glob("*.json"))}
    matches = [name] if name in files else [one for one in files if one.startswith(name)]
    if len(matches) != 1:
        found = f"{len(matches) or 'no'} sweeps in {folder} begin with {name!r}"
        raise InvalidInput(f"{found}; allowed: {', '.join(matches or files) or 'none'}")
    plan = read_plan(SWEEP, profile, results, [files[matches[0]]])
    return replace(plan, artefact=f"{SWEEP}/{matches[0]}")


def read_sweep(name: str, artefact: str, profile: str, results: Path) -> Plan:
    """The plan of those cells of a sweep of one's own that are an artefact's.

    Raises InvalidInput if there are none, and as `find_sweep`.
    """
    plan = find_sweep(name, profile, results)
    sweep = Path(plan.artefact).name
    requests = tuple(
        replace(request, part=part, is_other_run=part.startswith(RUNS))
        for request in plan.requests
        for part in [request.of.partition("/")[2]]
        if request.of.partition("/")[0] == artefact
    )
    if not requests:
        names = dict.fromkeys(request.of.partition("/")[0] for request in plan.requests)
        allowed = ", ".join(filter(None, names)) or "none; they were typed key by key"
        raise InvalidInput(
            f"sweep {sweep} has no cells of {artefact}; allowed: artefacts that it asks for: "
            f"{allowed}"
        )
    commands = {request.part: plan.commands[sweep] for request in requests}
    return replace(plan, requests=requests, commands=commands)


@dataclass(frozen=True)
class Results:
    """The cells of a plan and what they measured.

    cells: one row per request, in the order of print: cell_id, `keys`, part, is_audit, status,
    reason, and device and commit, empty unless the cell is done. rows: cell_id -> the rows of a
    finished cell, one per prompt, by prompt_index. keys: the names of the labels that tell requests
    apart: LABELS, those that the sweep varied, and of APART what it takes. biases: cell_id -> the
    sentence about the bias that enumeration shows of its verifier; most cells have none, and those
    of earlier versions do not say.
    """

    cells: pd.DataFrame
    rows: dict[str, pd.DataFrame]
    keys: tuple[str, ...]
    biases: Mapping[str, str] = field(default_factory=dict)

    @property
    def more(self) -> tuple[str, ...]:
        """The keys beyond LABELS that the sweep varied."""
        return self.keys[len(LABELS) :]

    @property
    def setting(self) -> tuple[str, ...]:
        """The keys of the labels that are equal in all rows that are compared."""
        return (*SETTING, *self.more)

    def check_one_setting(self, besides: Collection[str] = ()) -> None:
        """Raise InvalidInput if cells differ in their pair or a key beyond LABELS, like a filter.

        It is for figures and summaries that name none of these. besides: keys that may differ.
        """
        for key in ("pair", *self.more):
            values = [*dict.fromkeys(map(str, self.cells[key]))]
            if len(values) > 1 and key not in besides:
                found = f"found {key} {', '.join(values)}; allowed: a sweep for each"
                raise InvalidInput(f"its figure and summary are of one setting; {found}")

    @property
    def timed(self) -> pd.DataFrame:
        """The cells that are not audits."""
        return self.cells[~self.cells.is_audit]

    def place(self, cell: Mapping[str, Any], besides: Collection[str] = ()) -> tuple[Any, ...]:
        """The values of a cell's labels, which an audit shares with the cell that it audits.

        besides: keys that are left out.
        """
        return tuple(cell[key] for key in self.keys if key not in besides)

    def about(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """First columns of a cell's row in a CSV: id, labels, status, reason, number of prompts."""
        facts = {name: cell[name] for name in ("cell_id", *self.keys, "status", "reason")}
        return facts | {"num_prompts": len(self.rows.get(cell["cell_id"], ()))}

    def each(self) -> Iterator[tuple[dict[str, Any], pd.DataFrame | None]]:
        """The facts `about` each cell, and its rows, which are None if the cell is not done."""
        for cell in self.cells.to_dict("records"):
            yield self.about(cell), self.rows.get(cell["cell_id"])


def told_apart(cells: pd.DataFrame, keys: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """The keys, and after them each of the names that tells cells apart whose keys are the same.

    cells: has cell_id and a column for each key and name.
    """

    def num_hidden(columns: tuple[str, ...]) -> int:
        """The number of cells behind another one in the same place."""
        by_place = cells.groupby([*columns], sort=False, dropna=False)
        return int((by_place.cell_id.nunique() - 1).sum())

    keys = tuple(keys)
    for name in names:
        if num_hidden((*keys, name)) < num_hidden(keys):
            keys = (*keys, name)
    return keys


def filters_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The filters that are on in a cell's configuration; those of earlier versions have none."""
    sampling = config.get("sampling", {})
    values = {key: sampling.get(key.partition(".")[2], off) for key, off in FILTERS_OFF.items()}
    return {key: value for key, value in values.items() if value != FILTERS_OFF[key]}


def with_filters_off(cells: pd.DataFrame) -> pd.DataFrame:
    """A frame of cells in which every filter is off that a cell's labels do not name."""
    return cells.fillna({key: str(value) for key, value in FILTERS_OFF.items()})


def filters_in(cells: Iterable[str]) -> list[str]:
    """The keys of the filters among the columns of a frame, or among the labels of a cell."""
    return [key for key in FILTERS_OFF if key in cells]


def load(plan: Plan, columns: Iterable[str] = ()) -> Results:
    """Read the cells of a plan.

    columns: fields that each row must have beside IDENTITY. Raises InvalidInput, one line with the
    cell's name, when a finished cell is damaged or was configured otherwise than its labels say,
    its rows lack a column, or cells that are compared did not measure the same prompts with the
    same seeds.
    """
    import pandas as pd

    keys = [*LABELS, *(name for request in plan.requests for name in request.labels)]
    keys = [*dict.fromkeys(keys)]
    for request in plan.requests:
        _check_configuration(plan, request)
    rows = {}
    for cell_id in dict.fromkeys(request.cell_id for request in plan.requests):
        if plan.status(cell_id).state == "done":
            rows[cell_id] = frame = plan.prompts(cell_id)
            fields = (*IDENTITY, *columns)
            if missing := [
                name for name in fields if name not in frame or name in frame.attrs["partial"]
            ]:
                problem = f"its rows lack {', '.join(missing)}; another version or task wrote them"
                raise InvalidInput(f"cell {cell_id}: {problem}")
            frame.attrs["machines"] = _machines(plan.provenance(cell_id))
            config = plan.configuration(cell_id)
            sampling = config.get("sampling") or {}
            limits = [sampling.get(name) for name in LIMITS]
            frame.attrs["alike"] = [*limits, config.get("dtype")]
    apart = [name for name in APART if name not in keys]  # a sweep over tasks labels them itself
    entries = [
        {"cell_id": request.cell_id, "task": request.task, "of": request.of, **request.labels}
        | {"part": request.part, "is_audit": request.is_audit, **_columns(plan, request.cell_id)}
        for request in plan.requests
    ]
    facts = ["part", "is_audit", "status", "reason", "device", "commit"]
    cells = with_filters_off(pd.DataFrame(entries, columns=["cell_id", *keys, *apart, *facts]))
    cells = cells.fillna("").astype({"is_audit": bool})
    _, *keys = told_apart(cells, ("is_audit", *keys), apart)

    def rank(column: pd.Series) -> Any:
        if column.name in LABELS:
            return column.map(lambda value: labels.rank(column.name, value))
        return pd.factorize(column)[0]

    order = [*SETTING, *keys[len(LABELS) :], "decoder", "tree", "verifier"]
    cells = cells.sort_values(order, kind="stable", key=rank)
    decoded = cells[(cells.status == "done") & ~cells.is_audit]
    # cells of other tasks and artefacts may have other prompts; none are compared with these
    compared = [*dict.fromkeys((*keys[len(LABELS) :], *APART))]
    _check_same_prompts(decoded, rows, compared)
    _check_other_documents(decoded, rows, compared)
    cells = cells[["cell_id", *keys, *facts]]
    cells = cells.drop_duplicates(["cell_id", *keys, "is_audit"], ignore_index=True)
    shown = {cell_id: plan.provenance(cell_id).get("shown_bias", "") for cell_id in rows}
    biases = {cell_id: sentence for cell_id, sentence in shown.items() if sentence}
    return Results(cells, rows, tuple(keys), biases)


def _status(folder: Path) -> Status:
    status = read_status(folder)
    if status.state == "damaged":
        raise InvalidInput(status.reason)
    if status.state == "stale":  # its rows are printed, with a note: see `Plan.outdated`
        return Status("done", "", status.seconds)
    is_running = status.state == "running"
    return Status("interrupted", "running, or killed, when it was read") if is_running else status


def _stale_files(folder: Path) -> list[str]:
    """The files of code that have changed since the cell in a folder was completed."""
    return changed_code(folder) if (folder / "rows.jsonl").is_file() else []


def _columns(plan: Plan, cell_id: str) -> dict[str, str]:
    """The state of a cell with its reason, and the device and the commit of a finished cell."""
    status, device, commit = plan.status(cell_id), "", ""
    if status.state == "done":
        runs = origins(plan.provenance(cell_id))
        commit = listed(commit_of(run, 10) for run in runs)
        device = listed(run.get("device") for run in runs)
    return {"status": status.state, "reason": status.reason, "device": device, "commit": commit}


def _machines(provenance: Mapping[str, Any]) -> frozenset[tuple[str, ...]]:
    """The conditions of the times of a cell's runs; one entry for runs that have all in common.

    They are the device, the threads, the version of torch, the way of the target's forwards, and
    the version of transformers where its modules make them.
    """

    def conditions(run: Mapping[str, Any]) -> tuple[str, ...]:
        versions, forwards = run.get("versions") or {}, (run.get("forwards") or {}).get("target")
        libraries = ["torch"]
        if (forwards or {}).get("forward") == "modules of transformers":
            libraries.append("transformers")
        return (
            str(run.get("device")),
            f"{run.get('num_threads')} threads",
            f"forwards {forwards}",
            *(f"{name} {versions.get(name)}" for name in libraries),
        )

    return frozenset(map(conditions, origins(provenance)))


def origins(provenance: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The facts about each run of a cell, the last one last; a resumed cell has several runs."""
    last_run = dict(provenance)
    return [*last_run.pop("before", ()), last_run]


def commit_of(run: Mapping[str, Any], length: int | None = None) -> str:
    """A run's commit, from `origins`, cut to a length, and whether the code differed from it."""
    commit = str(run.get("git_commit") or "unknown")[:length]
    return f"{commit} (changed)" if run.get("git_is_dirty") else commit


def facts_of(plans: Sequence[Plan]) -> dict[str, Any]:
    """The origin of the numbers of plans, for programs: profile, and the commits of done cells."""
    cells = {
        request.cell_id: plan
        for plan in plans
        for request in plan.requests
        if plan.status(request.cell_id).state == "done"
    }
    runs = (run for cell_id, plan in cells.items() for run in origins(plan.provenance(cell_id)))
    commits = dict.fromkeys(commit_of(run) for run in runs if run)
    return {"profile": plans[0].profile, "commit": [*commits]}


def listed(values: Iterable[object]) -> str:
    """Distinct values in their order, without None and empty texts, joined by commas."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _provenance(folder: Path) -> dict[str, Any]:
    path = folder / "provenance.json"
    return read_json(path) if path.is_file() else {}


def _configuration(folder: Path) -> dict[str, Any]:
    return read_json(folder / "cell.json").get("config") or {}


def _check_configuration(plan: Plan, request: Request) -> None:
    """Raise InvalidInput for a finished cell measured with other values than its request names."""
    if plan.status(request.cell_id).state != "done":
        return
    config = plan.configuration(request.cell_id)
    values = {name: config.get(name) for name in COMPARED} | FILTERS_OFF | filters_of(config)
    named = FILTERS_OFF | request.labels
    for name, value in values.items():
        if value is not None and name in named and not _is_same(value, named[name]):
            difference = f"was measured with {name} {value}, and its plan names it {named[name]}"
            again = f"`{plan.commands.get(request.part, plan.command)}` plans and measures it anew"
            raise InvalidInput(f"cell {request.cell_id}: {difference}; {again}")


def _is_same(value: object, label: object) -> bool:
    """Whether a value of a configuration is the value of a label, which may be its text."""
    try:
        return float(str(value)) == float(str(label))
    except ValueError:
        return str(value).lower() == str(label).lower()


def _prompts(folder: Path) -> pd.DataFrame:
    import pandas as pd

    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    frame = pd.DataFrame(rows)
    frame.attrs["partial"] = [name for name in frame if any(name not in row for row in rows)]
    return (
        frame.sort_values("prompt_index", ignore_index=True) if "prompt_index" in frame else frame
    )


def _check_same_prompts(
    cells: pd.DataFrame, rows: Mapping[str, pd.DataFrame], more: Iterable[str]
) -> None:
    """Raise InvalidInput unless cells of a pair and data set measured the same prompts and seeds.

    Rows of earlier versions have no checksum of the prompt's tokens, which is not compared then.
    """
    for _, cell_ids in cells.groupby(["pair", "dataset", *more], sort=False).cell_id:
        first = next(iter(cell_ids))
        for cell_id in cell_ids:
            if difference := other_prompts(rows[cell_id], rows[first]):
                own, other = difference
                contrast = f"where {first}, compared with it, has {other}"
                raise InvalidInput(
                    f"cell {cell_id}: measured prompt {own} {contrast} "
                    "(index, id, seed, checksum of its tokens)"
                )


def _check_other_documents(
    cells: pd.DataFrame, rows: Mapping[str, pd.DataFrame], more: Iterable[str]
) -> None:
    """Raise InvalidInput if two data sets of one pair have the same prompts.

    These would count twice in whatever is of all data sets. Rows of earlier versions have no
    checksums of prompts, which are not compared then.
    """
    for _, group in cells.groupby(["pair", *more], sort=False):
        datasets: dict[tuple[Any, ...], str] = {}
        for cell_id, dataset in zip(group.cell_id, group.dataset, strict=True):
            checksums = tuple(rows[cell_id].get("prompt_sha256", ()))
            if not checksums or not all(isinstance(one, str) for one in checksums):
                continue
            if (first := datasets.setdefault(checksums, dataset)) != dataset:
                raise InvalidInput(
                    f"cell {cell_id}: data sets {first} and {dataset} have the same prompts; "
                    "allowed: a sweep with one of them"
                )


def are_alike(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether the rows of two cells are of the same prompts, with the same limits and dtype."""
    return one.attrs.get("alike") == other.attrs.get("alike") and not other_prompts(one, other)


def other_prompts(one: pd.DataFrame, other: pd.DataFrame) -> tuple[list[Any], list[Any]] | None:
    """The first prompt that two cells do not share, as each has it; None if they share all."""
    names = [*IDENTITY, "prompt_sha256"]
    columns = (rows.reindex(columns=names).values.tolist() for rows in (one, other))
    for first, second in zip_longest(*columns, fillvalue=["none"]):
        known = len(IDENTITY) + all(isinstance(prompt[-1], str) for prompt in (first, second))
        if first[:known] != second[:known]:
            return first[:known], second[:known]
    return None
