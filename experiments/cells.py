"""What a cell is, and what names it: a hash of the values that determine its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from resispec.errors import InvalidInput

# Part of every cell's identity: raise it when a change to the code changes what a cell measures.
RESULTS_VERSION = 2

# Everything in a configuration determines the result, but for these.
IGNORED = {
    "results": "where results go",
    "wandb": "where dashboards go",
    "profile": "a profile's values count, not its name",
    "names": "how files are named",
    "axes": "what sweeps go over",
    "jobs": "how many cells run at a time",
    "timed": "what may run beside a cell",
    "prompt_counts": "what sweeps choose from",
    "first_tuning_prompt": "what searches start from; the tree that they find counts",
    "search": "the tree that it finds counts",
    "tree": "counts through the decoder that refers to it",
    "verifier": "counts through the decoder that refers to it",
    "audit": "counts through the task that refers to it",
}
# Keys that a configuration did not have at first: at these values results from before keep their names.
LATER = {"compiled": False}
OURS = ("resispec.", "experiments.")
PATHS = ("path", "target", "draft")  # keys whose values are files or folders wherever such exist
# A larger file is known by its size and three samples, since reading weights takes minutes.
LARGE_BYTES = 1 << 24
SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Cell:
    """One point of a grid.

    labels: how the request names it: the options of pair, data set and decoder, and of tree and verifier
    where the decoder uses them, the temperature, `audit` on audit cells, and whatever else the request
    varies. config: the resolved configuration.
    """

    labels: dict[str, Any]
    config: dict[str, Any]

    @property
    def is_timed(self) -> bool:
        """Whether its times count, so that no other such cell may run beside it; those of an audit do not."""
        return self.config["timed"] and not self.config["audit"]

    @cached_property
    def cell_id(self) -> str:
        """16 hexadecimal digits. Raises InvalidInput when a file that the cell depends on is missing."""
        tree = self.tree_file
        if tree is not None and not tree.is_file():
            raise InvalidInput(
                f"tree file {tree} does not exist; give tree.path=FILE, or a tree that is searched for"
            )
        key = json.dumps([RESULTS_VERSION, _identity(self.determining)], sort_keys=True)
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    @property
    def determining(self) -> dict[str, Any]:
        """The part of the configuration that determines the result."""
        return {
            key: value
            for key, value in self.config.items()
            if key not in IGNORED and not (key in LATER and value == LATER[key])
        }

    @property
    def folder(self) -> Path:
        """Where its rows are, or will be."""
        return Path(self.config["results"]) / "raw" / self.config["profile"] / self.cell_id

    @property
    def tree_file(self) -> Path | None:
        """The file of its topology, which may not exist yet; None where the topology is not from a file."""
        path = self.config["tree"].get("path") if "tree" in self.labels else None
        return None if path is None else Path(path)

    def changed(self, labels: Mapping[str, Any], **values: Any) -> Cell:
        """Another cell: the same configuration but for these top-level values."""
        return Cell(dict(labels), self.config | values)

    def __str__(self) -> str:
        printed = {"temperature": "T={}", "audit": "audit"}
        plain = ("pair", "dataset", "decoder", "tree", "verifier")
        return " ".join(
            printed.get(name, "{}" if name in plain else f"{name}={{}}").format(value)
            for name, value in self.labels.items()
        )


def _identity(node: Any, key: str = "") -> Any:
    """A configuration without places: files stand for what they hold, our own classes for their names."""
    if isinstance(node, dict):
        return {name: _identity(value, name) for name, value in node.items()}
    if isinstance(node, list | tuple):
        return [_identity(item) for item in node]
    if not isinstance(node, str) or "\n" in node or len(node) > 1024:
        return node
    if key == "_target_":
        return _class_name(node)
    name, separator, attribute = node.partition(".py:")  # a class in a file
    if separator and (found := content(Path(f"{name}.py").expanduser())) is not None:
        return [found, attribute]
    if key in PATHS or "/" in node or Path(node).suffix:
        return content(Path(node).expanduser()) or node
    return node


def _class_name(target: str) -> str:
    """Our own modules may move; what belongs to others is named in full."""
    return target.rpartition(".")[2] if target.startswith(OURS) else target


def content(path: Path) -> Any:
    """What stands for a file or for all files of a folder; None where there is neither."""
    if path.is_file():
        stat = path.stat()
        return _digest(path.resolve(), stat.st_size, stat.st_mtime_ns)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {file.relative_to(path).as_posix(): content(file) for file in files}
    return None


@lru_cache(maxsize=4096)
def _digest(path: Path, num_bytes: int, _changed: int) -> str:
    """The SHA-256 of a file; of a large one the SHA-256 of its size and its first, middle and last MiB."""
    if num_bytes <= LARGE_BYTES:
        return hashlib.sha256(_relevant(path.read_bytes(), path.suffix)).hexdigest()
    digest = hashlib.sha256(str(num_bytes).encode())
    with path.open("rb") as file:
        for start in (0, num_bytes // 2, num_bytes - SAMPLE_BYTES):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _relevant(data: bytes, suffix: str) -> bytes:
    """The bytes of a file that count: of one that a search wrote what was found, not when and where."""
    if suffix != ".json":
        return data
    try:
        found = json.loads(data)
        counted = [found["fastest"], found["best"]] if "fastest" in found else found["child_counts"]
        return json.dumps(counted, sort_keys=True).encode()
    except (ValueError, TypeError, KeyError):
        return data
