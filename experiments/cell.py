"""A cell: its configuration, a hash of what decides its result, and how its objects are built."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from analysis.load import FILTERS_OFF, filters_of
from experiments.explain import explained
from resispec.errors import InvalidInput, first_line
from resispec.files import remembered_sha256
from resispec.sampling import Sampling

if TYPE_CHECKING:  # commands that only name cells read no data
    from resispec.data import Prompt

Reporter = Callable[[str, int, int], None]
"""Called with the current work, the number of things done, and their total, as of prompts."""

# Part of every cell's identity: raise it when a change to the code changes what a cell measures.
RESULTS_VERSION = 2

# Every key of a configuration determines the result, except these.
IGNORED = {
    "results": "where results go",
    "name": "what the sweep is called",
    "wandb": "where dashboards go",
    "profile": "a profile's values count, not its name",
    "axes": "what sweeps go over",
    "artefacts": "what artefacts go over",
    "jobs": "how many cells run at a time",
    "devices": "on which GPUs they run",
    "cells_per_job": "how many cells a job on a cluster measures",
    "cell_timeout_s": "how long it may take",
    "reuse": "whether a stale cell is kept",
    "timed": "what may run beside a cell",
    "prompt_counts": "what sweeps choose from",
    "first_tuning_prompt": "what searches start from; the tree that they find counts",
    "max_tuning_prompts": "how long they take; the tree that they find counts",
    "search": "the tree that it finds counts",
    "tree": "counts through the decoder that refers to it",
    "verifier": "counts through the decoder that refers to it",
    "audit": "counts through the task that refers to it",
}
# Keys that were added later: with these values a cell keeps the id that it had before.
LATER: Mapping[str, Any] = FILTERS_OFF | {"task.in_answer": False}
TIMES_ALONE = ("Race", "Profile")
"""Our tasks that measure nothing but times."""
WITH_TIMES = ("Decode", *TIMES_ALONE)
"""Our tasks whose rows have times; those of others may have some, too.

With timed=false the times do not count, so that is another cell.
"""
OURS = ("resispec.", "experiments.", "recipes.")
# Functions of ours that make the object of somebody else's class, and their own keys.
MAKERS = ("resispec.plugins.make", "resispec.verifiers.get_verifier")
OF_MAKERS = ("kind", "name")
# Modules of ours that have moved; cells that name them keep their ids.
MOVED = {"resispec.smollm2.": "recipes.smollm2."}
# Keys whose values are files or folders, if these exist.
PATHS = ("path", "answers_path", "target", "draft")
FILLED = "task.folder"  # a folder that the cell itself fills
# Texts that no system takes for a path: with a line break, or with too long a name, or too long.
NO_PATH = re.compile(rb"\n|[^/]{256}|.{4096}")
# A larger file is no tree, and its checksum is remembered, since reading weights takes seconds.
LARGE_BYTES = 1 << 24


@dataclass(frozen=True)
class Cell:
    """One point of a grid.

    labels: the request's names for it: the options of pair, data set and decoder, and of tree and
    verifier if the decoder uses them, the temperature, the filters that are on, `audit` for audit
    cells, and whatever else the request varies. config: the resolved configuration.
    """

    labels: dict[str, Any]
    config: dict[str, Any]

    @property
    def is_timed(self) -> bool:
        """Whether its times count, so that no timed cell may run beside it; false for audits."""
        return self.config.get("timed", True) and not self.config.get("audit")

    @property
    def task_name(self) -> str:
        """The name of its task's class."""
        return self.task_target.rpartition(".")[2]

    @property
    def task_target(self) -> str:
        """The name of its task's class with its module; "" if it names none."""
        return str(self.config.get("task", {}).get("_target_", ""))

    @cached_property
    def cell_id(self) -> str:
        """The cell's id, 16 hexadecimal digits.

        Raises InvalidInput when the tree's file is missing.
        """
        if not self.has_tree:
            ways_out = "give tree.path=FILE, or a tree that is searched for"
            raise InvalidInput(f"tree file {self.tree_file} does not exist; {ways_out}")
        return node_id([RESULTS_VERSION, self.determining])

    def check_unchanged(self) -> None:
        """Raise InvalidInput if its files are no longer those that its id was made of."""
        if node_id([RESULTS_VERSION, self.determining]) != self.cell_id:
            raise InvalidInput(
                "a file that it reads has changed since it was planned; run the command again"
            )

    @property
    def determining(self) -> dict[str, Any]:
        """The part of the configuration that determines the result."""
        is_ours = self.task_target.startswith(OURS)
        has_times = self.task_name in WITH_TIMES or not is_ours
        counts = has_times and not self.is_timed and not self.config.get("audit")
        ignored = IGNORED.keys() - ({"timed"} if counts else set())
        return {
            key: value for key, value in _without_later(self.config).items() if key not in ignored
        }

    @property
    def setting(self) -> str:
        """All determining values but the decoder, as text.

        One process times cells that share it in turns.
        """
        return json.dumps(
            {key: value for key, value in self.determining.items() if key != "decoder"}
        )

    @property
    def has_tree(self) -> bool:
        """Whether the tree is available: the cell needs no tree file, or the file exists."""
        return self.tree_file is None or self.tree_file.is_file()

    @property
    def folder(self) -> Path:
        """The folder of the cell's rows, which may not exist yet."""
        return Path(self.config["results"]) / "raw" / self.config["profile"] / self.cell_id

    @property
    def tree_file(self) -> Path | None:
        """The file of its topology, which may not exist yet; None if the topology has none."""
        path = self.config["tree"].get("path") if "tree" in self.labels else None
        return None if path is None else Path(path)

    def check_tree(self) -> None:
        """Raise InvalidInput if the file of its searched tree is for something else."""
        if self.tree_file and self.has_tree and self.config.get("search"):
            build(self.config["search"]).check_found(self.tree_file, self)

    def changed(self, labels: Mapping[str, Any], **values: Any) -> Cell:
        """Another cell with these labels, whose configuration differs in these top-level values."""
        return Cell(dict(labels), self.config | values)

    def __str__(self) -> str:
        plain = dict.fromkeys(("pair", "dataset", "decoder", "tree", "verifier"), "{}")
        printed = plain | {"temperature": "T={}", "audit": "audit"}
        return " ".join(
            printed.get(key, f"{key}={{}}").format(value) for key, value in self.labels.items()
        )


def file_name(label: object) -> str:
    """A label's text without characters that file systems may refuse: "chain-num_drafted-7"."""
    return re.sub(r"[^\w.]+", "-", str(label)).strip("-")


def filter_suffix(config: Mapping[str, Any]) -> str:
    """The filters that are on as a part of a file's name, ".top_p-0.9"; "" if none is."""
    return "".join(f".{key.partition('.')[2]}-{value}" for key, value in filters_of(config).items())


def sampling_of(config: Mapping[str, Any]) -> Sampling:
    """A configuration's sampling settings, for decoding and for turning logits into laws."""
    return Sampling(temperature=config["temperature"], **config["sampling"])


def prompts_of(config: Mapping[str, Any]) -> list[Prompt]:
    """The documents that a configuration measures, in order.

    Raises InvalidInput as `build` and the data set do, and for a data set that gives more or fewer
    than it is asked for, or an id twice.
    """
    first, count = config["first_prompt"], config["first_prompt"] + config["num_prompts"]
    documents = list(build(config["dataset"]).prompts(count))
    name = config["dataset"].get("name", config["dataset"].get("_target_"))
    if len(documents) != count:
        raise InvalidInput(
            f"data set {name} gave {len(documents)} documents to prompts({count}); allowed: as "
            "many as are asked for"
        )
    [(most_common, times)] = Counter(document.id for document in documents).most_common(1)
    if times > 1:  # categories and sums over runs go by the id
        raise InvalidInput(
            f"data set {name} gave {times} documents the id {most_common!r}; allowed: each its own"
        )
    return documents[first:]


class CellFailed(RuntimeError):
    """Cells did not complete; the message has a line for each, "CELL: REASON"."""


class CellBusy(RuntimeError):
    """Another run is measuring the cell."""


def build_option(path: Path) -> Any:
    """The object that a file of conf/ describes by itself.

    Raises InvalidInput as `build`, and for a file with a slip in it, without a class, or with a
    value that only a command line gives.
    """
    with explained():
        node = OmegaConf.load(path)
    if "_target_" not in node:
        raise InvalidInput(f"{path.stem} names no class of its own; allowed: one with a _target_")
    node.pop("label", None)
    if missing := OmegaConf.missing_keys(node):
        raise InvalidInput(f"{path.stem} has no {', '.join(sorted(missing))} of its own")
    return build(node)


def check_task(task: Any, decoder: Any) -> None:
    """Raise InvalidInput if a task cannot measure a decoder, or its draws break what they promise.

    Nothing else is raised: a rule of the user's may fail here for want of its target's laws.
    """
    from resispec.audit.row_checks import check_draws  # imports torch
    from resispec.core import DrawsKind

    try:
        if isinstance(draws := decoder.drafter.draws, DrawsKind):
            check_draws(draws)
        task.check(decoder)
    except InvalidInput:
        raise
    except (Exception, SystemExit):  # noqa: BLE001, S110
        pass


def build(node: Any) -> Any:
    """The object that a node of the configuration describes.

    Raises InvalidInput, in one line with the cause, for a target that is not there or refuses its
    values.
    """
    target = str(node.get("_target_", "?"))
    for old, new in MOVED.items():  # a cell that was measured before has the old name
        if target.startswith(old):
            node = {**node, "_target_": new + target.removeprefix(old)}
    try:
        return instantiate(node)
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, InvalidInput):
            cause = cause.__cause__
        if isinstance(cause, InvalidInput):
            raise cause from error
        raise InvalidInput(
            f"{target} cannot be made: {type(cause).__name__}: {first_line(cause)}"
        ) from error


def is_ours(target: object) -> bool:
    """Whether a `_target_` makes an object of a class of ours."""
    return str(target).startswith(OURS) and target not in MAKERS


def is_drafting(decoder: Mapping[str, Any]) -> bool:
    """Whether the configuration of a decoder drafts, so that there is something to audit."""
    drafter = decoder.get("drafter")
    target = drafter.get("_target_") if isinstance(drafter, Mapping) else ""
    return not str(target).endswith(".NoDraft")


def node_id(node: Any) -> str:
    """16 hexadecimal digits of a configuration, or a list of some, with files by their content."""
    key = json.dumps(_identity(node), sort_keys=True)
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _without_later(node: Any, key: str = "") -> Any:
    """A configuration without the keys of LATER that have the values there.

    key: as in `_identity`.
    """
    if not isinstance(node, dict):
        return node
    places = {name: f"{key}.{name}".lstrip(".") for name in node}
    return {
        name: _without_later(value, places[name])
        for name, value in node.items()
        if not (places[name] in LATER and value == LATER[places[name]])
    }


def _identity(node: Any, key: str = "", is_others: bool = False) -> Any:
    """A configuration without locations: digests in place of files, bare names for our own classes.

    key: the node's place in the whole, like "dataset.path"; "" for items of lists. is_others: it
    is given to a class that is not ours, which may read a file by any of its values.
    """
    if isinstance(node, dict):
        target = node.get("_target_")
        is_others = is_others if target is None else not is_ours(target)
        own = OF_MAKERS if target in MAKERS else ()
        return {
            name: _identity(value, f"{key}.{name}".lstrip("."), is_others and name not in own)
            for name, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [_identity(item, is_others=is_others) for item in node]
    if not isinstance(node, str) or key == FILLED or NO_PATH.search(os.fsencode(node)):
        return node
    last_name = key.rpartition(".")[2]
    if last_name == "_target_":  # our own modules may move; classes of others keep their full names
        return node.rpartition(".")[2] if node.startswith(OURS) else node
    name, separator, attribute = node.partition(".py:")  # a class in a file
    if separator and (identity := content(Path(f"{name}.py"))) is not None:
        return [identity, attribute]
    if is_others or last_name in PATHS or "/" in node or Path(node).suffix:
        return content(Path(node).expanduser()) or node
    return node


def content(path: Path) -> Any:
    """The identity of a file, or of each file of a folder by its path; None if there is neither."""
    if path.is_file():
        stat = path.stat()
        return _digest(
            path.resolve(), stat.st_size, (stat.st_mtime_ns, stat.st_ctime_ns), stat.st_ino
        )
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {file.relative_to(path).as_posix(): content(file) for file in files}
    return None


@lru_cache(maxsize=4096)
def _digest(path: Path, num_bytes: int, _changed: tuple[int, int], _inode: int) -> str:
    """The SHA-256 of a file.

    For a file that a search of ours wrote, only the found trees count, not when and where they were
    found.
    """
    if num_bytes > LARGE_BYTES:
        return remembered_sha256(path)
    data = path.read_bytes()
    if path.suffix == ".json":
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            tree = json.loads(data)
            if tree["format"].startswith("resispec "):
                is_fastest = "fastest" in tree
                facts = [tree["fastest"], tree["best"]] if is_fastest else tree["child_counts"]
                data = json.dumps(facts, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()
