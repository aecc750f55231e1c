"""Grow maps: files that hold a topology.

`.json` is our format. `.pt` is Sequoia's (arXiv 2402.12374), which is read and never written: it
says everything six times over, and its list of each node's children, `Successors`, is the whole
topology.
"""

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resispec.errors import InvalidInput
from resispec.files import read_sealed, sealed, write_atomically
from resispec.trees.topology import Topology, from_child_counts

FORMAT = "resispec grow map 1"


def load(path: str | Path, num_nodes: int | None = None) -> Topology:
    """Read a topology; a configuration can name this function.

    num_nodes: the number of nodes that the map must have, the root counted; None allows any.
    Raises InvalidInput when the file is missing, of an unknown kind, unreadable or changed since it
    was saved, when it holds no topology, or a topology with another number of nodes.
    """
    path = Path(path)
    if path.suffix not in (".json", ".pt"):
        raise InvalidInput(
            f"grow map {path}: unknown kind of file '{path.suffix}'; allowed: .json, .pt"
        )
    if not path.is_file():
        raise InvalidInput(
            f"grow map {path}: there is no such file; allowed: a .json or .pt grow map"
        )
    content = read_sealed(path) if path.suffix == ".json" else _unpickled(path)
    try:
        topology = _from_ours(content) if path.suffix == ".json" else _from_sequoias(content)
        if num_nodes not in (None, topology.num_nodes):
            raise InvalidInput(
                f"{topology.num_nodes} nodes, the root counted; allowed here: num_nodes {num_nodes}"
            )
    except InvalidInput as error:
        raise InvalidInput(f"grow map {path}: {error}") from error
    return topology


def save(topology: Topology, path: str | Path, about: Mapping[str, Any] | None = None) -> None:
    """Write a topology as JSON; a file that is present is complete. Folders are made.

    about: the origin of the map, in values that JSON can hold.
    Raises InvalidInput for a suffix other than .json.
    """
    path = Path(path)
    if path.suffix != ".json":
        raise InvalidInput(f"grow map {path}: '{path.suffix}' is not written; allowed: .json")
    counts = [[len(topology.children[node]) for node in level] for level in topology.levels[:-1]]
    content = {"format": FORMAT, "num_nodes": topology.num_nodes, "child_counts": counts}
    if about is not None:
        content["about"] = dict(about)
    lines = [
        f'  "{key}": {json.dumps(value, allow_nan=False)}' for key, value in sealed(content).items()
    ]
    write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")


def about(path: str | Path) -> dict[str, Any]:
    """The origin of a map, as given to `save`; empty if the file lacks it or does not exist.

    Raises InvalidInput when a `.json` map cannot be read or was changed since it was saved.
    """
    path = Path(path)
    origin = read_sealed(path).get("about") if path.suffix == ".json" and path.is_file() else None
    return origin if isinstance(origin, dict) else {}


def _from_ours(content: Mapping[str, Any]) -> Topology:
    """The topology of a map in our format, which may leave out the childless last level."""
    if content.get("format") != FORMAT:
        raise InvalidInput(
            f"'format' is {reprlib.repr(content.get('format'))}; allowed: '{FORMAT}'"
        )
    topology = from_child_counts(content.get("child_counts", "missing"))
    if content.get("num_nodes") != topology.num_nodes:
        num_nodes = reprlib.repr(content.get("num_nodes"))
        raise InvalidInput(f"'num_nodes' is {num_nodes}; 'child_counts' gives {topology.num_nodes}")
    return topology


def _unpickled(path: Path) -> Any:
    """The plain values and tensors of a `.pt` file; no code in it is run."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        raise InvalidInput(
            f"grow map {path}: cannot be read as plain values and tensors "
            f"({type(error).__name__}); nothing else is loaded"
        ) from error


def _from_sequoias(content: Any) -> Topology:
    """The topology of a map in Sequoia's format.

    `Successors` lists every node's children, breadth first.
    """
    successors = content.get("Successors") if isinstance(content, dict) else None
    if not isinstance(successors, list) or not all(
        isinstance(children, list) for children in successors
    ):
        raise InvalidInput(
            "'Successors' is missing, or no list of lists; allowed: one of Sequoia's maps"
        )
    children = [child for family in successors for child in family]
    if children != list(range(1, len(successors))):
        raise InvalidInput(
            f"'Successors' lists the children {reprlib.repr(children)} of {len(successors)} nodes; "
            "allowed: every node but the root once, in breadth-first order"
        )
    return Topology((-1, *(node for node, family in enumerate(successors) for _ in family)))
