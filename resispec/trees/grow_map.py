"""Grow maps: files that hold a topology.

`.pt` is the format of Sequoia (arXiv 2402.12374), which says everything six times over; `.json` is ours,
which says it once.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resispec.errors import InvalidInput, first_line
from resispec.files import replacing, write_atomically
from resispec.trees import Topology, from_child_counts

FORMAT = "resispec grow map 1"

_LISTS, _TENSOR = "a list of lists of int", "a dense tensor of integers or booleans"
_PT_KEYS = {
    "size": "an int",
    "roots": _LISTS,
    "branches": _LISTS,
    "Successors": _LISTS,
    "mask": _TENSOR,
    "depth": _TENSOR,
}
_INTEGERS = ("torch.int64", "torch.int32", "torch.int16", "torch.int8", "torch.uint8", "torch.bool")


def load(path: str | Path, num_nodes: int | None = None) -> Topology:
    """Read a topology; a configuration can name this function.

    num_nodes: the nodes that the map must have, the root counted.
    Raises InvalidInput when the file is missing, of an unknown kind, unreadable, or contradicts itself or
    `num_nodes`.
    """
    path = Path(path)
    with _named(path):
        suffix = _suffix(path)
        if not path.is_file():
            raise InvalidInput("there is no such file; allowed: a .pt or .json grow map, as `save` writes")
        topology = _read_pt(path) if suffix == ".pt" else _read_json(path)
        if num_nodes is not None and topology.num_nodes != num_nodes:
            raise InvalidInput(
                f"{topology.num_nodes} nodes, the root counted; allowed here: num_nodes {num_nodes}"
            )
    return topology


def save(topology: Topology, path: str | Path, about: Mapping[str, Any] | None = None) -> None:
    """Write a topology, so that the file's presence means it is complete; folders are made.

    about: where the map comes from, values that JSON can hold; only a `.json` map has room for it.
    Raises InvalidInput for an unknown suffix, or an `about` that the file cannot hold.
    """
    path = Path(path)
    with _named(path):
        suffix = _suffix(path)
        if suffix == ".pt" and about is not None:
            raise InvalidInput("a .pt map has no room for 'about'; allowed: .json")
        text = _json_text(topology, about)
    path.parent.mkdir(parents=True, exist_ok=True)
    if suffix == ".json":
        write_atomically(path, text)
    else:
        import torch

        with replacing(path) as partial:
            torch.save(_pt_content(topology), partial)


def about(path: str | Path) -> dict[str, Any]:
    """Where a map comes from, as `save` was told; empty when the file does not say so, or there is none.

    Raises InvalidInput when a `.json` map cannot be read.
    """
    path = Path(path)
    with _named(path):
        content = _parsed(path) if path.suffix == ".json" and path.is_file() else {}
        known = content.get("about") if isinstance(content, dict) else None
        return dict(known) if isinstance(known, dict) else {}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Say in every error which file it is about."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"grow map {path}: {error}") from error


def _suffix(path: Path) -> str:
    if path.suffix not in (".pt", ".json"):
        raise InvalidInput(f"unknown kind of file '{path.suffix}'; allowed: .pt, .json")
    return path.suffix


def _child_counts(topology: Topology) -> list[list[int]]:
    return [[len(topology.children[node]) for node in level] for level in topology.levels]


def _pt_content(topology: Topology) -> dict[str, Any]:
    """Sequoia's six keys; the masks and depths are int64, and levels and nodes are in breadth-first order."""
    return {
        "size": topology.num_nodes,
        "roots": [list(level) for level in topology.levels],
        "branches": _child_counts(topology),
        "Successors": [list(nodes) for nodes in topology.children],
        "mask": topology.ancestors.long(),
        "depth": topology.depths,
    }


def _read_pt(path: Path) -> Topology:
    """The topology that `Successors` gives, once every other key is what that topology gives."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        kind = type(error).__name__
        raise InvalidInput(
            f"cannot be read as plain values and tensors ({kind}); nothing else is loaded"
        ) from error
    _check_keys(content, set(_PT_KEYS), set(_PT_KEYS))
    found = {key: _plain(key, content[key]) for key in _PT_KEYS}
    topology = _from_successors(found["Successors"])
    for key, value in _pt_content(topology).items():
        _compare(key, found[key], _plain(key, value))
    return topology


def _check_keys(content: Any, needed: set[str], allowed: set[str]) -> None:
    if not isinstance(content, dict):
        raise InvalidInput(
            f"holds a {type(content).__name__}; allowed: a mapping with keys {', '.join(sorted(allowed))}"
        )
    missing, extra = sorted(needed - set(content)), sorted(map(str, set(content) - allowed))
    if missing or extra:
        raise InvalidInput(
            f"missing keys {missing}, unexpected keys {extra}; allowed: {', '.join(sorted(allowed))}"
        )


def _plain(key: str, value: Any) -> Any:
    """A value of Sequoia's format as an int or lists of them, once its type is right."""
    from torch import Tensor, strided

    kind = _PT_KEYS[key]
    is_dense = isinstance(value, Tensor) and value.is_cpu and value.layout == strided
    if kind == _TENSOR and is_dense and str(value.dtype) in _INTEGERS:
        return value.tolist()
    if (kind == _LISTS and _holds_lists_of_int(value)) or (key == "size" and type(value) is int):
        return value
    found = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else reprlib.repr(value)
    raise InvalidInput(f"'{key}' is {found}; allowed: {kind}")


def _holds_lists_of_int(value: Any) -> bool:
    """Whether this is a list of lists of int; a bool is none."""
    return isinstance(value, list) and all(
        isinstance(row, list) and all(type(x) is int for x in row) for row in value
    )


def _from_successors(successors: list[list[int]]) -> Topology:
    parents = [-1]
    for node, children in enumerate(successors):
        following = list(range(len(parents), len(parents) + len(children)))
        if children != following or (children and node >= len(parents)):
            raise InvalidInput(
                f"'Successors' at node {node} is {reprlib.repr(children)}; "
                f"allowed: breadth-first numbers, here {following[:6]}"
            )
        parents += [node] * len(children)
    if len(parents) != len(successors):
        raise InvalidInput(
            f"'Successors' names {len(parents)} nodes, the root counted, and lists {len(successors)}"
        )
    return Topology(tuple(parents))


def _compare(key: str, found: Any, expected: Any) -> None:
    """Raise InvalidInput at the first place where two nested lists differ."""
    place: tuple[int, ...] = ()
    while (
        isinstance(found, list)
        and isinstance(expected, list)
        and found != expected
        and len(found) == len(expected)
    ):
        index = next(i for i, (mine, given) in enumerate(zip(found, expected, strict=True)) if mine != given)
        place, found, expected = (*place, index), found[index], expected[index]
    if found != expected:
        unit = "level" if key in ("roots", "branches") else "node"
        where = "".join(f" at {word} {index}" for word, index in zip((unit, "entry"), place, strict=False))
        raise InvalidInput(
            f"'{key}'{where} is {reprlib.repr(found)}; 'Successors' gives {reprlib.repr(expected)}"
        )


def _json_text(topology: Topology, about: Mapping[str, Any] | None) -> str:
    """Our format, one key a line; the last level has no children and is left out."""
    content = {
        "format": FORMAT,
        "num_nodes": topology.num_nodes,
        "child_counts": _child_counts(topology)[:-1],
    }
    if about is not None:
        content["about"] = dict(about)
    try:
        lines = [f'  "{key}": {json.dumps(value, allow_nan=False)}' for key, value in content.items()]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"'about' is not what JSON can hold: {error}") from error
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {first_line(error)}") from error


def _read_json(path: Path) -> Topology:
    content = _parsed(path)
    needed = {"format", "num_nodes", "child_counts"}
    _check_keys(content, needed, needed | {"about"})
    counts, num_nodes = content["child_counts"], content["num_nodes"]
    if content["format"] != FORMAT:
        raise InvalidInput(f"'format' is {reprlib.repr(content['format'])}; allowed: '{FORMAT}'")
    if not isinstance(content.get("about", {}), dict):
        raise InvalidInput(f"'about' is {reprlib.repr(content['about'])}; allowed: an object")
    if not _holds_lists_of_int(counts) or any(count < 0 for row in counts for count in row):
        raise InvalidInput(
            f"'child_counts' is {reprlib.repr(counts)}; allowed: lists of whole numbers from 0, one a level"
        )
    size = 1 + sum(map(sum, counts))
    if type(num_nodes) is not int or num_nodes != size:
        raise InvalidInput(f"'num_nodes' is {reprlib.repr(num_nodes)}; 'child_counts' gives {size}")
    return from_child_counts(counts)
