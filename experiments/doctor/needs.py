"""The needs of cells: a device, room in its memory, models and data sets.

The doctor prints a line for each. A run makes the same checks of its own cells, see `check_cells`.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from analysis import labels
from experiments.cell import Cell, is_ours
from experiments.doctor import device as devices
from resispec.embedded.shapes import find_shape
from resispec.errors import InvalidInput
from resispec.hub import ITEM_BYTES, Weights, find_weights, must_use_copy

GIB = 2**30
LOADED_BYTES = {**ITEM_BYTES, "int8": 3, "int4": 3.6}
"""Bytes of a weight in memory: those of few bits are kept in bfloat16, too."""
CACHES = 0.25
"""The share of the weights that caches and laws take: ten Llama-2-7B decoders of 600 positions."""
RESERVED_BYTES = GIB
"""Bytes of an accelerator's context and libraries."""
DEADLINE_S = 15.0
"""Seconds that a hub has to answer everything."""
OK, NOTE, PROBLEM = "ok", "note", "problem"
"""A profile with a problem cannot run as it is; a note stops nothing."""


@dataclass(frozen=True)
class Line:
    """A line of the doctor's report. name: what was looked at. found: its state, and a remedy."""

    state: str
    name: str
    found: str

    def __str__(self) -> str:
        return f"{self.state:<7}  {self.name}: {self.found}"


@dataclass(frozen=True)
class Repository:
    """A repository on a hub, or a local path in its place. kind: "model" or "dataset"."""

    kind: str
    name: str
    revision: str | None

    @property
    def is_local(self) -> bool:
        """Whether the name is that of a file or folder here."""
        return Path(self.name).expanduser().exists()

    def find(self) -> Weights | str:
        """A model's weights, or where a data set is read.

        Raises InvalidInput, as a cell would, when the repository cannot be read.
        """
        if self.kind == "model":
            return find_weights(self.name, self.revision)
        is_copy = must_use_copy(self.name, self.revision)
        return "in the cache of the hub" if is_copy else "on the hub"


class Needs:
    """The needs of cells, and what of them is there.

    devices: by the names that configurations give them. found: of each repository what its `find`
    gives, or the error that it raises.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        sources = dict.fromkeys(source for cell in cells for source in sources_of(cell))
        pool = ThreadPoolExecutor(len(sources) + 1)  # all of them mostly wait
        answers = {source: pool.submit(source.find) for source in sources}
        asked = {cell.config["device"]: cell.config["devices"] for cell in cells}
        self.devices = {kind: devices.ask(kind, indexes) for kind, indexes in asked.items()}
        wait(answers.values(), DEADLINE_S)
        pool.shutdown(wait=False, cancel_futures=True)
        self.found = {source: _answer(source, answer) for source, answer in answers.items()}

    def lines(self, cell: Cell) -> Iterator[Line]:
        """The lines about everything that a cell needs."""
        yield self._device(cell)
        yield from map(self._source, sources_of(cell))
        yield from self._memory(cell)

    def _device(self, cell: Cell) -> Line:
        kind, device = str(cell.config["device"]), self.devices[cell.config["device"]]
        if device.missing:
            remedy = "PROFILE=embedded needs a CPU alone" if kind != "cpu" else "`make install`"
            return Line(PROBLEM, f"device {kind}", f"{device.missing}; {remedy}")
        free = f"{gib(device.free)} of {gib(device.total)} free"
        return Line(OK, f"device {kind}", f"{device.name}, {free}")

    def _source(self, source: Repository) -> Line:
        name, found = f"{source.kind} {source.name}", self.found[source]
        if isinstance(found, InvalidInput):
            return Line(PROBLEM, name, str(found).removeprefix(f"{name} "))
        if isinstance(found, Weights):
            size = f"{found.num_parameters / 1e6:,.0f} million parameters"
            place = f"on the hub, {gib(found.num_bytes)} to download"
            return Line(OK, name, f"{size}, {f'in {found.folder}' if found.folder else place}")
        return Line(OK, name, found)

    def _memory(self, cell: Cell) -> Iterator[Line]:
        """Lines about a cell's pair, as far as known: how long making it takes, and its memory."""
        pair, dtype = cell.config["pair"], str(cell.config["dtype"])
        name, device = f"pair {cell.labels['pair']}", self.devices[cell.config["device"]]
        if made := labels.made(cell.labels["pair"]):
            yield Line(OK, name, made)
        models = [found for source in models_of(cell) if (found := self.found[source])]
        weights = [found for found in models if isinstance(found, Weights)]
        sizes = [found.num_parameters for found in weights]
        if "shape" in pair:
            sizes = [find_shape(pair["shape"]).num_parameters]
        if device.missing or not sizes or len(weights) < len(models):
            return
        precisions = dtype.split("/") * 2  # one for both models, or the target's and the draft's
        num_bytes = sum(
            size * LOADED_BYTES[name] for size, name in zip(sizes, precisions, strict=False)
        )
        reserved = 0 if cell.config["device"] == "cpu" else RESERVED_BYTES
        needed = (1 + CACHES) * num_bytes + reserved
        found = f"needs about {gib(needed)} (weights {gib(num_bytes)} in {dtype})"
        found += f", {gib(device.free)} of {gib(device.total)} are free"
        if needed <= device.free:
            yield Line(OK, name, found)
            return
        remedies = ["a smaller pair", "a larger device"]
        if dtype == "float32":
            remedies.insert(0, "dtype=float16")
        if needed <= device.total:
            remedies.insert(0, "end what holds the rest")
        yield Line(PROBLEM, name, f"{found}; {', or '.join(remedies)}")


def gib(num_bytes: float) -> str:
    """A size in GiB: "12.6 GiB"."""
    return f"{num_bytes / GIB:.1f} GiB"


def models_of(cell: Cell) -> list[Repository]:
    """The models that a cell's pair reads.

    There are none if it has a fingerprint, since it is made here, and none that are known of a
    loader that is not ours.
    """
    pair = cell.config["pair"]
    if "fingerprint" in pair or not is_ours(pair["_target_"]):
        return []
    return [
        Repository("model", str(pair[role]), pair.get(f"{role}_revision"))
        for role in ("target", "draft")
        if pair.get(role)
    ]


def sources_of(cell: Cell) -> list[Repository]:
    """Everything that a cell reads from a hub, or from a folder in its place."""
    data = cell.config["dataset"]
    if not data.get("repo") or data.get("path"):  # a path takes the repository's place
        return models_of(cell)
    return [*models_of(cell), Repository("dataset", str(data["repo"]), data.get("revision"))]


def _answer(source: Repository, answer: Future[Weights | str]) -> Weights | str | InvalidInput:
    if not answer.done():
        return InvalidInput(f"{source.kind} {source.name} gave no answer within {DEADLINE_S:g} s")
    error = answer.exception()
    if error is None:
        return answer.result()
    if isinstance(error, InvalidInput):
        return error
    raise error


def check_cells(cells: Sequence[Cell]) -> None:
    """Print before a sweep one line for each problem that keeps some of its cells from running.

    Cells on a CPU that read nothing from a hub need no check: they cost no time. Raises
    InvalidInput when none of the cells can run.
    """
    concerned = [
        cell
        for cell in cells
        if cell.config["device"] != "cpu" or not all(one.is_local for one in sources_of(cell))
    ]
    if not concerned:
        return
    needs = Needs(concerned)
    problems = [[line for line in needs.lines(cell) if line.state == PROBLEM] for cell in concerned]
    lines = list(dict.fromkeys(line for of_cell in problems for line in of_cell))
    if all(problems) and len(concerned) == len(cells):
        more = f" (and {len(lines) - 1} more; `make doctor` lists them)" if lines[1:] else ""
        raise InvalidInput(f"{lines[0].name}: {lines[0].found}{more}")
    sys.stderr.write("".join(f"{line}\n" for line in lines))
