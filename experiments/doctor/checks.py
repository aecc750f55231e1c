"""The doctor's checks: each looks at one thing that a profile needs,
and gives one or several lines.

A sweep makes some of these checks before its first cell, see `check_cells`.
"""

import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from huggingface_hub import constants, get_token
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from analysis import labels
from experiments.cell import Cell
from experiments.doctor import device as devices
from experiments.doctor.hub import ITEM_BYTES, Repository, look_at, size_of_shape
from experiments.doctor.work import data_set_of, models_of, read_by
from experiments.schema import CONF
from resispec.data import is_kept, kept_at
from resispec.embedded.shapes import PAIR_SHAPES
from resispec.errors import InvalidInput
from resispec.files import cache_root
from resispec.hub import Access

GIB = 2**30
CACHES = 0.25
"""The share of the weights that caches and laws take: of Llama-2-7B,
ten decoders of 600 positions each.
"""
RESERVED_BYTES = RESULTS_BYTES = GIB
"""Bytes of an accelerator's context and libraries; the most bytes of a profile's rows,
trees and pages.
"""
INSTALL = "make install"
OK, NOTE, PROBLEM = "ok", "note", "problem"
"""A profile with a problem cannot run as it is; a note stops nothing."""


@dataclass(frozen=True)
class Check:
    """A line of the doctor's report.

    name: what was checked. found: its state. todo: a remedy or "".
    """

    state: str
    name: str
    found: str
    todo: str = ""

    def __str__(self) -> str:
        advice = f"; to do: {self.todo}" if self.todo else ""
        return f"{self.state:<7}  {self.name}: {self.found}{advice}"


@dataclass
class Patient:
    """Everything that the checks look at: cells, the repositories that they read, and their device.

    pairs, data: a cell of each.
    """

    results: Path
    cells: Sequence[Cell]

    def __post_init__(self) -> None:
        self.data = {str(cell.labels["dataset"]): cell for cell in self.cells}
        self.pairs = {str(cell.labels["pair"]): cell for cell in self.cells}
        sources = [
            wanted
            for cell in (*self.pairs.values(), *self.data.values())
            for wanted in read_by(cell)
        ]
        with ThreadPoolExecutor(1) as pool:  # both mostly wait
            answer = pool.submit(look_at, dict.fromkeys(sources))
            self.device = devices.ask(self.cells[0].config["device"])
            self.repositories = answer.result()

    def problems(self) -> dict[tuple[str, str], list[Check]]:
        """The problems that keep cells from running, by axis and option:
        of pairs and data sets with any.
        """
        lines = {("dataset", name): [data_set(cell, self)] for name, cell in self.data.items()}
        for name, cell in self.pairs.items():
            models = [model(self.repositories[wanted]) for wanted in models_of(cell)]
            lines["pair", name] = [pair(cell, self), *models]
        problems = {
            key: [line for line in checks if line.state == PROBLEM] for key, checks in lines.items()
        }
        return {key: checks for key, checks in problems.items() if checks}


def gib(num_bytes: float) -> str:
    """A size in GiB: "12.6 GiB"."""
    return f"{num_bytes / GIB:.1f} GiB"


def _listed(names: Sequence[str]) -> str:
    """Names for a line; of many names only the first six."""
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def versions(_: Patient, root: Path = CONF.parent) -> Iterator[Check]:
    """Whether packages have versions that pyproject.toml allows and
    that constraints.txt lists as tested.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = re.findall(
        r"^([\w.-]+)==(\S+)", (root / "constraints.txt").read_text(encoding="utf-8"), re.M
    )
    tested = {canonicalize_name(name): pin for name, pin in pins}
    python, allowed, problems, notes = platform.python_version(), project["requires-python"], [], []
    if python not in SpecifierSet(allowed):
        yield Check(PROBLEM, "versions", f"Python {python}; allowed: {allowed}", "another Python")
        return
    lines = [*project["dependencies"], *project["optional-dependencies"]["harness"]]
    for requirement in map(Requirement, lines):
        try:
            installed = version(requirement.name).partition("+")[0]
        except PackageNotFoundError:
            problems.append(f"{requirement.name} is missing")
            continue
        pin = tested.get(canonicalize_name(requirement.name), installed)
        if not requirement.specifier.contains(installed, prereleases=True):
            problems.append(f"{requirement.name} {installed} (allowed: {requirement.specifier})")
        elif installed != pin:
            notes.append(f"{requirement.name} {installed} (tested: {pin})")
    if problems:
        yield Check(PROBLEM, "versions", ", ".join(problems), INSTALL)
    elif notes:
        yield Check(NOTE, "versions", f"not those that were tested: {', '.join(notes)}", INSTALL)
    else:
        yield Check(
            OK, "versions", f"Python {python}, and {len(lines)} packages as they were tested"
        )


def device(patient: Patient) -> Iterator[Check]:
    """Whether the profile's device is there, and fit for its precision."""
    device, dtype = patient.device, patient.cells[0].config["dtype"]
    line = f"{device.name}, {gib(device.free)} of {gib(device.total)} free"
    if device.missing:
        todo = (
            INSTALL if device.kind == "cpu" else "choose PROFILE=embedded, which needs a CPU only"
        )
        yield Check(PROBLEM, "device", device.missing, todo)
    elif dtype == "bfloat16" and not device.has_bfloat16:
        yield Check(NOTE, "device", f"{line}; it emulates bfloat16, slowly", "dtype=float16")
    else:
        yield Check(OK, "device", line)


def hub(patient: Patient) -> Iterator[Check]:
    """Whether the hub answers, if anything is read from it."""
    repos = [repo for repo in patient.repositories.values() if not repo.wanted.is_local]
    silent = [repo for repo in repos if repo.access in (Access.UNREACHABLE, Access.OFFLINE)]
    absent = [repo.wanted.name for repo in repos if repo.copy is None]
    if not repos or len(silent) < len(repos):
        yield Check(OK, "hub", f"{constants.ENDPOINT} answers" if repos else "not needed")
        return
    why = f"HF_HUB_OFFLINE is set, so that {constants.ENDPOINT} is not asked"
    if failed := [repo for repo in silent if repo.access == Access.UNREACHABLE]:
        reason = f" ({failed[0].reason})" if failed[0].reason else ""
        why = f"{constants.ENDPOINT} cannot be reached{reason}"
    if absent:
        todo = "connect, or set HF_HOME to a filled cache"
        yield Check(PROBLEM, "hub", f"{why}, and there is no copy here of {_listed(absent)}", todo)
    else:
        yield Check(OK, "hub", f"{why}; there is a copy here of all {len(repos)} repositories")


def model(repository: Repository) -> Check:
    """Whether a model can be read, from where, and how large it is."""
    name, size = (
        f"model {repository.wanted.name}",
        f", {repository.size}" if repository.size else "",
    )
    volume = gib(repository.num_bytes) if repository.num_bytes else "unknown"
    fallback = "a local folder: pair.target=FOLDER pair.draft=FOLDER"
    return _reading(name, repository, size, f"on the hub{size}, {volume} to download", fallback)


def _reading(name: str, repository: Repository, size: str, on_hub: str, fallback: str) -> Check:
    """A line that says where a repository is read from, or why it cannot be read and what to do."""
    wanted, reason = repository.wanted, repository.reason
    if repository.is_open:
        return Check(OK, name, f"in {repository.copy}{size}" if repository.copy else on_hub)
    folder = "datasets/" if wanted.kind == "dataset" else ""
    page = f"{constants.ENDPOINT}/{folder}{wanted.name}"
    login = "log in: `hf auth login`, or HF_TOKEN" + (
        "" if get_token() else " (no token is known here)"
    )
    why, todo = {
        Access.OPEN: (reason, "complete it"),
        Access.GATED: (
            "gated, and closed to this account",
            f"ask for access on {page}, then {login}",
        ),
        Access.TOKEN: ("the hub does not take the token", login),
        Access.MISSING: (
            "the hub has no such repository, or it is private",
            f"look at {page}; {login}",
        ),
        Access.REVISION: (f"there is no revision {wanted.revision}", f"look at {page}"),
        Access.REFUSED: (f"the hub refuses it ({reason})", "try again later"),
        Access.UNREACHABLE: ("no copy here, and the hub cannot be reached", "connect"),
        Access.OFFLINE: ("no copy here, and HF_HUB_OFFLINE is set", "unset it"),
    }[repository.access]
    if reason.startswith("the copy") and repository.access != Access.OPEN:
        why = f"{reason}, and {why.removeprefix('no copy here, and ')}"
    return Check(PROBLEM, name, why, f"{todo}; or {fallback}")


def pair(cell: Cell, patient: Patient) -> Check:
    """Whether the weights of a cell's pair fit into the device's memory,
    with room for caches and laws.
    """
    name, device, dtype = f"pair {cell.labels['pair']}", patient.device, str(cell.config["dtype"])
    node = cell.config["pair"]
    # of a pair that is trained here
    if "shape" not in node and (folders := node.get("fingerprint")):
        is_there = all((cache_root() / folder).is_dir() for folder in folders.split("-"))
        source = labels.made(cell.labels["pair"]) or "trained here at first use, in minutes"
        return Check(OK, name, f"made, in {cache_root()}" if is_there else source)
    models = {wanted: patient.repositories[wanted].size for wanted in models_of(cell)}
    shape = PAIR_SHAPES.get(str(node.get("shape")))
    sizes = [
        size_of_shape(part, "by its shape")
        for part in ((shape.target, shape.draft) if shape else ())
    ]
    sizes += filter(None, models.values())
    weights = sum(size.parameters for size in sizes) * ITEM_BYTES[dtype]
    needed = (1 + CACHES) * weights + (0 if device.kind == "cpu" else RESERVED_BYTES)
    line = f"needs about {gib(needed)} (weights {gib(weights)} in {dtype})"
    unknown = [wanted.name for wanted, size in models.items() if size is None]
    if unknown:
        line += f" and what {_listed(unknown)} takes, whose size nothing says"
    if device.missing or not device.total:
        return Check(NOTE, name, f"{line}; how much there is, is not known")
    if needed > device.total:
        todo = (
            "" if ITEM_BYTES[dtype] <= 2 else "dtype=float16, "
        ) + "a smaller pair, or a larger device"
        return Check(
            PROBLEM, name, f"too large for {device.name}: {line}, has {gib(device.total)}", todo
        )
    if needed > device.free:
        todo = "end what holds the rest, or choose another device"
        return Check(
            PROBLEM, name, f"{line}; {gib(device.free)} of {gib(device.total)} are free", todo
        )
    return (
        Check(NOTE, name, line)
        if unknown
        else Check(OK, name, f"{line}, {gib(device.free)} are free")
    )


def data_set(cell: Cell, patient: Patient) -> Check:
    """Whether a cell's data set can be read, and from where."""
    name, wanted, config = (
        f"data set {cell.labels['dataset']}",
        data_set_of(cell),
        cell.config["dataset"],
    )
    if wanted is None and "url" in config:
        pinned = config["url"], config["sha256"]
        place = (
            f"in {kept_at(*pinned)}"
            if is_kept(*pinned)
            else f"fetched at first use from {config['url']}"
        )
        return Check(OK, name, place)
    if wanted is None:
        return Check(OK, name, "made here at first use, from text that every Python has")
    repository, is_streamed = patient.repositories[wanted], config.get("streaming")
    volume = "streamed" if is_streamed else f"{gib(repository.num_bytes)} to download"
    fallback = "a local file: dataset.path=FILE.jsonl"
    return _reading(name, repository, "", f"{wanted.name} on the hub, {volume}", fallback)


def disk(patient: Patient) -> Iterator[Check]:
    """Whether the disk has room for downloads and results."""
    cells = patient.data.values()
    streamed = {data_set_of(cell) for cell in cells if cell.config["dataset"].get("streaming")}
    num_bytes = sum(
        repo.num_bytes for wanted, repo in patient.repositories.items() if wanted not in streamed
    )
    advice = "make place, or give RESULTS=FOLDER on another disk"
    needs = [("results", patient.results, RESULTS_BYTES, advice)]
    if num_bytes:
        cache, advice = Path(constants.HF_HUB_CACHE), "set HF_HOME to a folder on a larger disk"
        needs.insert(0, ("downloads", cache, num_bytes, advice))
    for name, folder, needed, todo in needs:
        place = next(
            path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
        )
        free = shutil.disk_usage(place).free
        line = f"{gib(free)} free in {folder}, {name} need {gib(needed)}"
        yield Check(OK, "disk", line) if free >= needed else Check(PROBLEM, "disk", line, todo)


CHECKS: tuple[Callable[[Patient], Iterable[Check]], ...] = (
    *(versions, device, hub),
    lambda patient: (
        model(repo) for repo in patient.repositories.values() if repo.wanted.kind == "model"
    ),
    lambda patient: (pair(cell, patient) for cell in patient.pairs.values()),
    lambda patient: (data_set(cell, patient) for cell in patient.data.values()),
    disk,
)
"""All checks, in the order in which their lines are printed."""


def check_cells(cells: Sequence[Cell]) -> None:
    """Print before a sweep that its cells can run, or one line for each problem
    that keeps some from running.

    Cells on a CPU that read nothing from a hub need no check: they get no line and cost no time.
    Raises InvalidInput when the device is not there, or when none of the cells can run.
    """
    concerned = [
        cell
        for cell in cells
        if cell.config["device"] != "cpu" or not all(wanted.is_local for wanted in read_by(cell))
    ]
    if not concerned:
        return
    patient = Patient(Path(), concerned)
    device = patient.device
    if device.missing:
        raise InvalidInput(f"device {device.kind}: {device.missing}; `make doctor` says more")
    problems = patient.problems()
    lines = dict.fromkeys(line for checks in problems.values() for line in checks)
    options = ({(axis, str(cell.labels[axis])) for axis in ("pair", "dataset")} for cell in cells)
    if all(problems.keys() & of_cell for of_cell in options):
        first, *others = lines
        more = f" (and {len(others)} more; `make doctor` lists them)" if others else ""
        raise InvalidInput(f"{first.name}: {first.found}; to do: {first.todo}{more}")
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    if not lines:
        pairs, data = ", ".join(patient.pairs), ", ".join(patient.data)
        sys.stderr.write(f"doctor: {pairs} on {device.name}, {data}: all there, and large enough\n")
