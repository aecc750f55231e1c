"""Searches for a tree file: for a grow map, and for the best tree of a size.

A run whose tree file is missing calls its search. Every measurement is a cell of its own, kept and
resumed like any other, on documents that no table reads. Nothing imports torch before something is
measured, so that a search is made and checked before anything slow happens.
"""

from __future__ import annotations

import math
import os
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from analysis.labels import options, owner_of_tree
from analysis.load import FILTERS_OFF, filters_of
from experiments.cell import Cell, Reporter, build, file_name, filter_suffix, node_id
from experiments.processes import GPUS
from experiments.search import candidates
from experiments.search.candidates import Found, Value
from experiments.store import PROVENANCE
from resispec.code_digest import code_digests
from resispec.errors import InvalidInput
from resispec.files import locked, read_json, write_atomically
from resispec.machine import checkout
from resispec.trees import MAX_NODES, Topology, from_widths, grow_map
from resispec.trees.search import Times, choose, search

if TYPE_CHECKING:
    from resispec.draws import DrawsKind

NUM_SIBLINGS = (
    32  # the most children of a node whose acceptance is measured, if the draws allow as many
)
ON_DEVICE = ("device", "dtype")
"""Keys of a pair that say how it is run; a tree that was found in one way serves in another."""
ROOT = {"_target_": "resispec.trees.root_only"}
STANDARD = {"_target_": "resispec.verifiers.Standard"}
COMPARING = {
    "topologies": "experiments.tasks.shapes.Shapes",
    "configurations": "experiments.tasks.shapes.Configurations",
}
TIMED_PROMPTS = 7  # prompts behind which forwards are timed
NamedTree = TypeVar("NamedTree")


class SearchStage(NamedTuple):
    """A measurement of a search, which is made `times` times.

    share: its share of the search's documents. num_prefixes: prefixes of each one, to compare trees
    on.
    """

    share: int
    num_prefixes: int = 0
    times: int = 1


@dataclass
class TreeSearch(ABC):
    """A search for one file, to be called once.

    num_prompts: documents of every data set, split over the stages. num_levels: the most levels,
    the root counted. cells: one for every data set, sorted by its name. measured: ids of the
    measured cells, in order. forwards_cell: id of the one that timed forwards, on the device
    `timed_on`. AGREED: labels that all cells which name the file share.
    """

    num_prompts: int
    num_levels: int
    cells: list[Cell] = field(init=False)
    measured: list[str] = field(init=False, default_factory=list)
    forwards_cell: str = field(init=False)
    timed_on: str = field(init=False)
    AGREED: ClassVar[tuple[str, ...]] = ("pair", "temperature", *FILTERS_OFF)
    STAGES: ClassVar[tuple[SearchStage, ...]] = (SearchStage(1),)
    FEWEST_LEVELS: ClassVar[int] = 2
    FEWEST_NODES: ClassVar[int] = 1

    def stand_in(self) -> dict[str, Any] | None:
        """The node of a tree in place of the one that is still to be found; it branches, too.

        None if nothing can stand in for it.
        """
        return {"_target_": "resispec.trees.complete", "depth": 3, "branching": 2}

    def _fit_size(self, cells: Sequence[Cell]) -> None:
        """Lower the number of documents to the profile's limit, and check the search's sizes."""
        limit = cells[0].config["max_tuning_prompts"]
        if limit is not None and type(self.num_prompts) is int:
            self.num_prompts = min(self.num_prompts, limit)
        fewest = sum(stage.share for stage in self.STAGES)
        for name, value, least, why in (
            ("num_prompts", self.num_prompts, fewest, f"split over {len(self.STAGES)} stages"),
            ("num_levels", self.num_levels, self.FEWEST_LEVELS, "the root counted"),
        ):
            if type(value) is not int or value < least:
                raise InvalidInput(
                    f"search.{name} is {value!r}; allowed: whole numbers from {least}, {why}"
                )

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """Raise InvalidInput for what cannot be searched for. cells: those that name the file."""
        self._fit_size(cells)
        if path.suffix != ".json":
            raise InvalidInput(f"tree file {path} does not exist; a search writes .json files only")
        for name in self.AGREED:
            off = FILTERS_OFF.get(name)
            check_one(path, name, (cell.labels.get(name, off) for cell in cells))
        for cell in cells:
            self._check_apart(path, cell, *self._documents(cell))
        num_nodes = cells[0].config["tree"].get("num_nodes")
        limit = min(MAX_NODES, sum(NUM_SIBLINGS**level for level in range(min(self.num_levels, 4))))
        fewest = self.FEWEST_NODES
        if num_nodes is not None and (
            type(num_nodes) is not int or not fewest <= num_nodes <= limit
        ):
            shape = f"search.num_levels {self.num_levels} and {NUM_SIBLINGS} children a node"
            raise InvalidInput(
                f"tree.num_nodes is {num_nodes}; allowed: {fewest} to {limit}, with {shape}"
            )

    def _documents(self, cell: Cell) -> tuple[int, int]:
        """First place and number of every data set's documents that the cell's search reads."""
        limit = cell.config["max_tuning_prompts"]
        count = self.num_prompts if type(self.num_prompts) is int else 0  # `check` refuses others
        return cell.config["first_tuning_prompt"], count if limit is None else min(count, limit)

    def _check_apart(self, path: Path, cell: Cell, first: int, count: int) -> None:
        """Raise InvalidInput for a cell that measures documents on which its tree is chosen.

        first, count: of the documents that the search reads, see `_documents`.
        """
        start = cell.config["first_prompt"]
        stop = start + cell.config["num_prompts"]
        if max(start, first) < min(stop, first + count):
            measured = f"documents {start} to {stop - 1} of {cell.labels['dataset']} are measured"
            raise InvalidInput(
                f"{measured}, and {path} is chosen on {first} to {first + count - 1}; allowed: "
                "documents apart, by num_prompts, first_prompt and, for a search, "
                "first_tuning_prompt; search=null takes a file as it is"
            )

    def found_for(self, cell: Cell) -> dict[str, str]:
        """The identities of what a cell's labels name in short: its pair, on whatever device.

        Of a file for one data set, also that: two files of texts may have one label.
        """
        pair = cell.config["pair"]
        found = {"pair": node_id({key: pair[key] for key in pair if key not in ON_DEVICE})}
        if "dataset" in self.AGREED:
            found["dataset"] = node_id(cell.config["dataset"])
        return found

    def code_of(self, cell: Cell) -> dict[str, str]:  # noqa: ARG002
        """The digests of the files of resispec on which a cell's tree depends by its verifier."""
        return {}

    def check_found(self, path: Path, cell: Cell) -> None:
        """Raise InvalidInput for a file that cannot serve a cell.

        Such a file was found for something else than the cell has, or on documents that the cell
        measures. A file that does not say for what, as one of an earlier version, is taken. One
        that says on which data sets, but not on which documents, was found on those that the cell's
        profile names.
        """
        about = grow_map.about(path)
        found_for = about.get("found_for", {})
        for name, value in self.found_for(cell).items():
            if found_for.get(name, value) != value:
                raise InvalidInput(
                    f"{path} was searched for with another {name} that has the same name, or has "
                    "changed since; delete the file to search again, give tree.path=FILE, or take "
                    "it as it is (search=null)"
                )
        if (found := about.get("most_levels", self.num_levels)) != self.num_levels:
            raise InvalidInput(
                f"{path} was searched for with search.num_levels {found}, and {self.num_levels} is "
                "asked for; give another tree.path, or delete the file to search again"
            )
        present = (
            {"temperature": cell.config["temperature"]} | FILTERS_OFF | filters_of(cell.config)
        )
        recorded = FILTERS_OFF | about if "temperature" in about else present
        for key, value in present.items():
            if float(recorded[key]) != float(value):
                raise InvalidInput(
                    f"{path} was searched for with {key}={recorded[key]}, and this cell has "
                    f"{value}; give a tree.path for each, or take it as it is (search=null)"
                )
        if not _chosen_apart(about, cell):
            self._check_apart(path, cell, *about.get("documents", self._documents(cell)))

    def found_otherwise(self, path: Path, cell: Cell) -> Iterator[str]:
        """Lines about a file that serves a cell, but was found with other code or documents."""
        about = grow_map.about(path)
        recorded = about.get("code", {})
        present = self.code_of(cell).items()
        if changed := [name for name, digest in present if recorded.get(name, digest) != digest]:
            yield (
                f"{path} was searched for before {', '.join(changed)} changed; delete it to search "
                "again"
            )
        if names := _chosen_apart(about, cell):
            found = f"{', '.join(names)}, and of none of {cell.labels['dataset']}"
            yield f"{path} was chosen on documents of {found}"
        wanted = self._documents(cell)[1]
        count = about.get("documents", [0, wanted])[1]
        if count < wanted:
            yield (
                f"{path} was chosen on {count} documents of a data set, where this search takes "
                f"{wanted}; delete it to search again"
            )

    def __call__(self, path: Path, cells: Sequence[Cell], report: Reporter) -> None:
        """Search, and write the file; missing folders are made.

        cells: those that name the file, checked; for every data set the first one's configuration
        counts. Raises InvalidInput and what `experiments.worker.measured` raises.
        """
        self.begin(cells, report)
        self.write(path)

    def size(self, cells: Sequence[Cell]) -> int:
        """The number that reports count up to if no stage is left out, see `_cell_size`."""
        self._fit_size(cells)
        num_datasets = len({str(cell.labels["dataset"]) for cell in cells})
        measured = sum(stage.times * self._cell_size(stage) for stage in self.STAGES)
        return num_datasets * measured + self._num_timed

    @property
    def _share(self) -> int:
        """The number of documents for a share of 1."""
        return self.num_prompts // sum(stage.share for stage in self.STAGES)

    @property
    def _num_timed(self) -> int:
        """The number of prompts behind which forwards are timed, whatever stages read them."""
        return min(TIMED_PROMPTS, self.num_prompts)

    def _cell_size(self, stage: SearchStage) -> int:
        """The number of prefixes that a stage's cell measures; of documents if it takes none."""
        return self._share * stage.share * max(1, stage.num_prefixes)

    def begin(self, cells: Sequence[Cell], report: Reporter) -> None:
        """Take one cell of every data set."""
        by_dataset = {str(cell.labels["dataset"]): cell for cell in reversed(cells)}
        self.cells, self._report = [by_dataset[name] for name in sorted(by_dataset)], report
        self._done, self._size = 0, self.size(cells)
        # files may change while it searches
        self._found_for = self.found_for(self.cells[0])
        self._code = self.code_of(self.cells[0])

    @abstractmethod
    def write(self, path: Path) -> None:
        """Search for the cells, and write the file."""

    def stage(
        self,
        number: int,
        task: Mapping[str, Any],
        decoder: Any,
        labels: Mapping[str, str],
        **values: Any,
    ) -> list[Cell]:
        """A stage's cells, one a data set, at the pair and the law of the cells that want a tree.

        Its documents are its share of the search's, so that no stage reads those of another.
        values: more of the cells' configuration.
        """
        first = sum(stage.share for stage in self.STAGES[:number]) * self._share
        kept = ("pair", "dataset", "temperature", *FILTERS_OFF)
        changes = {
            "task": task,
            "decoder": decoder,
            "tree": ROOT,
            "search": None,
            "audit": False,
            "num_prompts": self.STAGES[number].share * self._share,
            "warmup_prompts": 0,
        }
        return [
            cell.changed(
                {name: cell.labels[name] for name in kept if name in cell.labels} | labels,
                first_prompt=cell.config["first_tuning_prompt"] + first,
                **changes | values,
            )
            for cell in self.cells
        ]

    def rows(
        self, cells: Sequence[Cell], title: str, size: int, is_timed: bool = False
    ) -> list[Any]:
        """The rows of cells, of which missing ones are measured first.

        size: what a cell counts in reports. is_timed: whether its times count; of all searches of a
        results folder one measures such cells at a time, or one on each of `devices`.
        """
        from experiments.worker import measured  # imports torch

        rows = list[Any]()

        def report(_: str, done: int, count: int) -> None:
            self._report(title, self._done + size * done // count, self._size)

        def wait() -> None:
            self._report(f"{title}: waiting", self._done, self._size)

        for cell in cells:
            cell.folder.parent.mkdir(parents=True, exist_ok=True)
            gpu = f".{os.environ[GPUS]}" if cell.config["devices"] else ""
            lock = cell.folder.parents[1] / f".timed{gpu}"
            with locked(lock, wait) if is_timed else nullcontext():
                rows += measured(cell, report)
            self._done += size
        self.measured += [cell.cell_id for cell in cells]
        return rows

    def times(self, sizes: Iterable[int]) -> Times:
        """Seconds of forwards of the target over each size and over 1, and of the draft.

        They are medians over a few prompts of the first data set, behind which all are timed in
        turns.
        """
        counted = sorted({1, *sizes})
        task = {"_target_": "experiments.tasks.forwards.Forwards", "sizes": counted}
        labels = {"decoder": "several", "task": "forwards"}
        counts = {"num_prompts": self._num_timed, "warmup_prompts": 1}
        cell = self.stage(0, task, draft_model("iid"), labels, **counts)[0]
        rows = self.rows([cell], "times of forwards", self._num_timed, is_timed=True)
        self.forwards_cell = cell.cell_id
        # of a cell that was measured before, perhaps elsewhere
        self.timed_on = str(read_json(cell.folder / PROVENANCE)["device"])
        by_size = zip(counted, zip(*(row.target_s for row in rows), strict=True), strict=True)
        target_s = {size: statistics.median(seconds) for size, seconds in by_size}
        return Times(target_s, statistics.median(row.draft_s for row in rows))

    def values(self, number: int, cells: Sequence[Cell], title: str, name: str) -> list[Value]:
        """Means of the list `name` over a stage's prefixes; missing rows are measured first."""
        return means(self.rows(cells, title, self._cell_size(self.STAGES[number])), name)

    def acceptance(
        self, decoder: Any, labels: Mapping[str, str], most: int = NUM_SIBLINGS
    ) -> list[Value]:
        """The acceptance rate of each place in draw order, measured in the first stage.

        most: siblings.
        """
        target = "experiments.tasks.acceptance.Acceptance"
        task = {"_target_": target, "num_siblings": most, "draws": decoder["drafter"]["draws"]}
        cells = self.stage(0, task, decoder, {**labels, "task": "acceptance"})
        return self.values(0, cells, f"acceptance of siblings, {labels['decoder']}", "selected")

    def compared(
        self,
        stage: int,
        kind: str,
        trees: Mapping[NamedTree, Any],
        decoder: Any,
        labels: Mapping[str, str],
    ) -> dict[NamedTree, Value]:
        """Expected tokens of trees, over all data sets; every prefix counts alike.

        kind: "topologies" or "configurations", which chooses the task. trees: tree -> its form in
        the task.
        """
        task = {"_target_": COMPARING[kind], "num_prefixes": self.STAGES[stage].num_prefixes}
        cells = self.stage(
            stage, task | {kind: list(trees.values())}, decoder, {**labels, "task": kind}
        )
        title = f"{len(trees)} {kind}, stage {stage + 1} of {len(self.STAGES)}"
        return dict(zip(trees, self.values(stage, cells, title, "emitted"), strict=True))

    def origin(self, **facts: Any) -> dict[str, Any]:
        """A file's `about`: the search's subject, the facts, and the hardware and the code."""
        labels, code = self.cells[0].labels, checkout()
        environment = {
            "git_commit": code["git_commit"],
            "git_is_dirty": code["git_is_dirty"],
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": self.timed_on,
        }
        subject = {"pair": str(labels["pair"]), "temperature": labels["temperature"]}
        subject |= filters_of(self.cells[0].config)
        facts |= {
            "found_for": self._found_for,
            "documents": self._documents(self.cells[0]),
            "dataset_ids": [node_id(cell.config["dataset"]) for cell in self.cells],
            "code": self._code,
            "most_levels": self.num_levels,
        }
        return subject | facts | environment | {"forwards_cell": self.forwards_cell}


def _chosen_apart(about: Mapping[str, Any], cell: Cell) -> list[str]:
    """The data sets that a tree was chosen on, if a cell's is none of them; else none.

    A file may be named in several ways, so a data set is one of them by its label or its content.
    """
    dataset = str(cell.labels["dataset"])
    names = about.get("datasets") or [about.get("dataset") or dataset]
    is_one = dataset in names or node_id(cell.config["dataset"]) in about.get("dataset_ids", ())
    return [] if is_one else names


def check_one(path: Path, name: str, values: Iterable[object]) -> None:
    """Raise InvalidInput if cells that name a file have several values of what it depends on."""
    if len(texts := dict.fromkeys(map(str, values))) > 1:
        raise InvalidInput(
            f"{path} is asked for with {name} {', '.join(texts)}; allowed: a tree.path for each"
        )


def draft_model(draws: str) -> dict[str, Any]:
    """Configuration of a decoder, whose tree is a root alone, for a task that brings its trees."""
    drafter = {"_target_": "resispec.drafters.DraftModel", "topology": ROOT, "draws": draws}
    return {"_target_": "resispec.decode.Decoder", "drafter": drafter, "verifier": STANDARD}


def means(rows: Sequence[Any], name: str) -> list[Value]:
    """Means over prefixes of a list of sums in `PrefixRow`s, with standard errors over prompts."""
    sums = np.array([getattr(row, name) for row in rows])
    counts = np.array([row.num_prefixes for row in rows])
    mean = sums.sum(0) / counts.sum()
    deviations = sums - counts[:, None] * mean
    error = np.sqrt((deviations**2).sum(0) * len(rows) / max(1, len(rows) - 1)) / counts.sum()
    return list(map(Value, mean.tolist(), error.tolist()))


def rounded(number: float, digits: int) -> float:
    """A number rounded to so many significant digits."""
    return float(f"{number:.{digits}g}")


def seconds_of(times: Times) -> dict[str, Any]:
    """Seconds of forwards, for a map's `about`."""
    target_s = {str(size): rounded(seconds, 3) for size, seconds in times.target_s.items()}
    return {"target_s": target_s, "draft_s": rounded(times.draft_s, 3)}


# --- the fastest tree without replacement

SIZES = (2, 4, 8, 16, 32, 64, 128)  # numbers of nodes that are tried if the map's is not given
HEAD: tuple[str, ...] = ("acceptance_cell", "pair", "dataset", "temperature", *FILTERS_OFF)
HEAD += ("device", "git_commit", "git_is_dirty", "started")


@dataclass
class GrowMapSearch(TreeSearch):
    """The search for the fastest tree of a pair, data set and temperature (arXiv 2402.12374).

    It measures how often a node's first, second, ... child is accepted without replacement, finds
    the tree with the fewest expected seconds a token by the times of both models' forwards on this
    device, and writes it, with the acceptance vector beside it.
    """

    num_prompts: int = 48
    num_levels: int = 12
    AGREED: ClassVar[tuple[str, ...]] = ("pair", "dataset", "temperature", *FILTERS_OFF)

    def write(self, path: Path) -> None:
        """See `TreeSearch.write`."""
        [cell] = self.cells
        labels = {"decoder": "sequoia", "verifier": "standard"}
        vector = self.acceptance(draft_model("without_replacement"), labels)
        num_nodes = cell.config["tree"].get("num_nodes")
        times = self.times(SIZES if num_nodes is None else (num_nodes,))
        searched = search([place.tokens for place in vector], max(times.target_s), self.num_levels)
        choice = choose(searched, times, num_nodes)
        about = self.origin(
            acceptance_cell=self.measured[0],
            dataset=str(cell.labels["dataset"]),
            num_levels=choice.topology.num_levels,
            expected_tokens=round(choice.expected_tokens, 4),
            expected_speedup=round(choice.speedup, 3),
            **seconds_of(times),
        )
        grow_map.save(choice.topology, path, about)
        # Comments say where the table comes from: `pandas.read_csv(path, comment="#")`.
        facts = [f"# {name}: {about[name]}" for name in HEAD if name in about]
        lines = [*facts, "position,probability,standard_error"]
        lines += [
            f"{place},{value.tokens:.6f},{value.error:.6f}" for place, value in enumerate(vector, 1)
        ]
        names = f"{file_name(cell.labels['pair'])}.{file_name(cell.labels['dataset'])}"
        law = f"T{cell.config['temperature']}{filter_suffix(cell.config)}"
        vector_path = path.with_name(f"{names}.{law}.acceptance.csv")
        write_atomically(vector_path, "\n".join(lines) + "\n")


# --- the best tree of a size

GOALS = ("tokens", "time")
PER_LEVEL = 6  # regular topologies of every number of levels
TRUNKS = (1, 2, 4)  # tokens of the one path before a topology branches, if it branches late
# topologies whose neighbours are tried: of most tokens, for the slowest draft model, and between
NEAR = 3
ROUNDS = {1: 0.3, 2: 0.15}  # stage -> share by which a level's width changes
DECISION, FINAL = 3, 4  # numbers of stages
VERIFIERS = {"iid": "traversal_optimal", "without_replacement": "traversal", "point_mass": "naive"}
"""Draws -> the best known verifier for them, an option of conf/verifier.

For other draws only `OwnShapeSearch` searches for trees.
"""


@dataclass
class BestShapeSearch(TreeSearch):
    """The search for the tree of a size with most tokens of the best verifier, or for the fastest.

    It computes the expected tokens of candidates from laws, all candidates on the same drafted
    trees, over all data sets of the cells that name the file. The decoder's draws say which
    verifier counts (VERIFIERS) and which trees are candidates, of those that it is defined on.
    Independent draws: first regular trees are compared, then, in rounds, the best of every number
    of levels and the neighbours of those that are the fastest at some ratio of the two models'
    times. Draws that have an order: the trees of Sequoia's search. Draws that cannot be cut: trees
    of even levels. More prefixes decide between the best two of every number of levels, and the
    winners are measured again on documents that no choice has seen; the file holds these values.

    by: "tokens" for most tokens a step, "time" for the fewest seconds a token.
    """

    num_prompts: int = 45
    num_levels: int = 14
    by: str = "tokens"
    AGREED: ClassVar[tuple[str, ...]] = ("pair", "temperature", *FILTERS_OFF, "decoder")
    STAGES: ClassVar[tuple[SearchStage, ...]] = (
        SearchStage(2, 4),
        SearchStage(2, 4),
        SearchStage(2, 4),
        SearchStage(5, 8),
        SearchStage(4, 8),
    )
    FEWEST_LEVELS: ClassVar[int] = (
        3  # a star of two levels has nothing to verify from the leaves up
    )
    FEWEST_NODES: ClassVar[int] = 4

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """See `TreeSearch.check`."""
        super().check(path, cells)
        if self.by not in GOALS:
            raise InvalidInput(f"search.by is {self.by!r}; allowed: {', '.join(GOALS)}")
        if cells[0].config["tree"].get("num_nodes") is None:
            reason = "tree.num_nodes must be given, like tree.num_nodes=121"
            raise InvalidInput(f"{reason}: shapes of one size are compared")
        self.counted(cells[0])

    def check_found(self, path: Path, cell: Cell) -> None:
        """See `TreeSearch.check_found`: the goal counts, and the draws."""
        super().check_found(path, cell)
        about = grow_map.about(path)
        goal, *_ = about.get("made_from") or [self.by]
        if goal != self.by:
            raise InvalidInput(
                f"{path} was searched for with search.by={goal}, and this cell has {self.by}; "
                "delete the file to search again, give tree.path=FILE, or take it as it is "
                "(search=null)"
            )
        if (node := _draws(cell)) is None:  # other draws than those of a draft model
            return
        draws = node if isinstance(node, str) else build(node).name
        if (found := about.get("draws", draws)) != draws:
            raise InvalidInput(
                f"{path} was searched for with draws {found}, and this cell has {draws}; "
                "search=null takes it as it is, and another tree.path is searched for"
            )

    def counted(self, cell: Cell) -> tuple[str, dict[str, Any]]:
        """The verifier whose tokens count for a cell, and its configuration.

        Raises InvalidInput if none is known for the cell's draws.
        """
        if (draws := str(_draws(cell))) not in VERIFIERS:
            found = f"decoder={cell.labels['decoder']} has {draws}"
            hint = "for the cell's own verifier there is tree=own_121"
            raise InvalidInput(
                f"shapes are searched for draws {', '.join(VERIFIERS)}; {found}; {hint}"
            )
        node = options("verifier")[VERIFIERS[draws]]
        return VERIFIERS[draws], {key: value for key, value in node.items() if key != "label"}

    def write(self, path: Path) -> None:
        """See `TreeSearch.write`."""
        from resispec.draws import Draws  # imports torch

        num_nodes, node = self.cells[0].config["tree"]["num_nodes"], _draws(self.cells[0])
        draws = Draws(node) if isinstance(node, str) else build(node)
        leaders = candidates.leaders(self.compare(DECISION, self.candidates(num_nodes, draws)))
        times = self.times((num_nodes,))

        def s_per_token(shape: Topology, values: Found) -> float:
            """Seconds of forwards a token."""
            return times.step_s(num_nodes, shape.num_levels) / values[shape].tokens

        def facts(shape: Topology) -> dict[str, Any]:
            return {
                "widths": list(candidates.widths_of(shape)),
                "expected_tokens": round(final[shape].tokens, 4),
                "standard_error": round(final[shape].error, 4),
                "s_per_token": rounded(s_per_token(shape, final), 3),
            }

        if self.by == "tokens":
            best = max(leaders, key=lambda shape: leaders[shape].tokens)
        else:
            best = min(leaders, key=lambda shape: s_per_token(shape, leaders))
        final = self.compare(FINAL, list(leaders))
        about = self.origin(
            made_from=[self.by, *self.measured[: len(self.cells)]],
            datasets=[str(cell.labels["dataset"]) for cell in self.cells],
            draws=draws.name,
            verifier=self.counted(self.cells[0])[0],
            num_levels=best.num_levels,
            **facts(best),
            frontier={str(shape.num_levels): facts(shape) for shape in final},
            # By rising ratio of a draft forward to a target forward; the last one has no end.
            fastest_up_to_ratio={
                str(shape.num_levels): None if math.isinf(ratio) else round(ratio, 4)
                for shape, ratio in candidates.fastest(final).items()
            },
            **seconds_of(times),
        )
        grow_map.save(best, path, about)

    def candidates(self, num_nodes: int, draws: DrawsKind) -> list[Topology]:
        """The topologies that the decision compares.

        Raises InvalidInput for a verifier defined on none.
        """
        from resispec.verifiers import as_verifier  # imports torch
        from resispec.verifiers.rehearsal import is_defined_on

        verifier = as_verifier(build(self.counted(self.cells[0])[1]))
        is_defined = partial(is_defined_on, verifier, draws)
        if draws.are_independent:
            return self._near_the_fastest(num_nodes, is_defined)
        if not draws.can_be_cut:
            shapes = candidates.even(num_nodes, self.num_levels, PER_LEVEL)
            return list(
                candidates.leaders(self.compare(0, self._some(filter(is_defined, shapes))), 2)
            )
        count = min(NUM_SIBLINGS, draws.most_siblings)
        vector = self.acceptance(*self._method(), count)
        levels = range(self.FEWEST_LEVELS, self.num_levels + 1)
        shapes = candidates.ordered([place.tokens for place in vector], num_nodes, levels)
        return self._some(filter(is_defined, shapes))

    def _near_the_fastest(
        self, num_nodes: int, is_defined: Callable[[Topology], bool]
    ) -> list[Topology]:
        """The best two shapes of every number of levels.

        Regular shapes are tried, those that branch late, and neighbours of the fastest.
        """
        shapes = candidates.regular(num_nodes, self.num_levels, PER_LEVEL, is_defined)
        topologies = list(map(from_widths, shapes))
        delayed = map(from_widths, candidates.delayed(num_nodes, self.num_levels, TRUNKS))
        values = self.compare(0, self._some([*topologies, *filter(is_defined, delayed)]))
        for stage, share in ROUNDS.items():
            neighbours = [
                from_widths(widths)
                for topology in candidates.spread(list(candidates.fastest(values)), NEAR)
                for widths in candidates.neighbours(
                    candidates.widths_of(topology), share, self.num_levels
                )
            ]
            topologies = [*candidates.leaders(values), *filter(is_defined, neighbours)]
            values = self.compare(stage, list(dict.fromkeys(topologies)))
        return list(candidates.leaders(values, 2))

    def _some(self, shapes: Iterable[Topology]) -> list[Topology]:
        """The shapes as a list. Raises InvalidInput if there is none."""
        if not (topologies := list(shapes)):
            name = self.counted(self.cells[0])[0]
            num_nodes = self.cells[0].config["tree"]["num_nodes"]
            trees = (
                f"trees of {num_nodes} nodes that are compared, in up to {self.num_levels} levels"
            )
            raise InvalidInput(
                f"{name} is defined on none of the {trees}; allowed: another tree.num_nodes"
            )
        return topologies

    def compare(self, stage: int, topologies: Sequence[Topology]) -> dict[Topology, Value]:
        """The value of every topology."""
        trees = {topology: list(topology.parents) for topology in topologies}
        return self.compared(stage, "topologies", trees, *self._method())

    def _method(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The cells' decoder with the verifier that counts, and its labels."""
        (verifier, node), decoder = self.counted(self.cells[0]), self.cells[0].config["decoder"]
        changed = decoder | {"drafter": decoder["drafter"] | {"topology": ROOT}, "verifier": node}
        return changed, {"decoder": self.cells[0].labels["decoder"], "verifier": verifier}


@dataclass
class OwnShapeSearch(BestShapeSearch):
    """A `BestShapeSearch` for the verifier of the cells that name the file, whatever their draws.

    If they have the tree of another verifier, the search is for that, see `owner_of_tree`.
    """

    def stand_in(self) -> dict[str, Any]:
        """See `TreeSearch.stand_in`; the cell's verifier may need separate paths."""
        return {"_target_": "resispec.trees.parallel_chains", "num_chains": 2, "num_drafted": 2}

    def check(self, path: Path, cells: Sequence[Cell]) -> None:
        """See `TreeSearch.check`."""
        if "verifier" not in cells[0].labels or _draws(cells[0]) is None:
            raise InvalidInput(
                "a tree for a verifier is searched for where the draft model drafts; found "
                f"decoder={cells[0].labels['decoder']}; allowed: specinfer, sequoia, top_k, "
                "greedy, spec_hub"
            )
        check_one(path, "verifier", (self.counted(cell)[0] for cell in cells))
        super().check(path, cells)

    def found_for(self, cell: Cell) -> dict[str, str]:
        """See `TreeSearch.found_for`: the verifier, too, with the user's files that it imports."""
        node = self.counted(cell)[1]
        code = code_digests({"decoder": node}).items()
        others = {name: digest for name, digest in code if not name.startswith("resispec/")}
        return super().found_for(cell) | {"verifier": node_id([node, others])}

    def code_of(self, cell: Cell) -> dict[str, str]:
        """See `TreeSearch.code_of`."""
        parts = {"decoder": [self.counted(cell)[1], {"draws": _draws(cell)}]}
        code = code_digests(parts).items()
        return {name: digest for name, digest in code if name.startswith("resispec/")}

    def counted(self, cell: Cell) -> tuple[str, dict[str, Any]]:
        """The verifier that the tree is for, and its configuration."""
        verifier = cell.labels["verifier"]
        if (owner := owner_of_tree(verifier)) == str(verifier):
            return owner, cell.config["decoder"]["verifier"]
        if owner not in options("verifier"):
            raise InvalidInput(
                f"{verifier} has the tree of {owner!r}, which is no verifier of conf/verifier; "
                f"allowed: {', '.join(options('verifier'))}"
            )
        node = options("verifier")[owner]
        return owner, {key: value for key, value in node.items() if key != "label"}


def _draws(cell: Cell) -> Any:
    """The draws of a cell's decoder, a name or a configuration; None if it has none."""
    return cell.config["decoder"].get("drafter", {}).get("draws")
