"""What cells ask for: pairs, data sets, and the most that a step of theirs holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cells import Cell
from experiments.configuration.build import build
from experiments.doctor.repositories import Wanted
from resispec.embedded.shapes import PAIR_SHAPES, Shape
from resispec.errors import InvalidInput

NODES = 128
"""Verified positions of a tree that is not found yet; no artefact has more."""


@dataclass(frozen=True)
class PairNeed:
    """A pair that cells ask for.

    models: on a hub, or folders; none for a pair that is made on this machine. shapes: of one that is made as
    large as these. trained: folders of one that is trained here, which may not be there yet. dtype: of its
    weights. places, nodes: positions that its caches hold, and those that a step verifies, at most.
    """

    name: str
    models: tuple[Wanted, ...]
    shapes: tuple[Shape, ...]
    trained: tuple[str, ...]
    dtype: str
    places: int
    nodes: int


@dataclass(frozen=True)
class DataNeed:
    """A data set that cells ask for. wanted: on a hub or a file; None for text that is made here."""

    name: str
    wanted: Wanted | None
    is_streamed: bool


def pairs_of(cells: Iterable[Cell]) -> list[PairNeed]:
    """The pairs of cells, each once with the most that any of its cells needs."""
    found: dict[tuple[Any, ...], PairNeed] = {}
    for cell in cells:
        config, nodes = cell.config, nodes_of(cell)
        places = config["sampling"]["max_length"] + nodes
        pair, dtype = config["pair"], str(config["dtype"])
        key = (str(cell.labels["pair"]), _models(pair), _shapes(pair), _trained(pair), dtype)
        if key in found:
            places, nodes = max(places, found[key].places), max(nodes, found[key].nodes)
        found[key] = PairNeed(*key, places, nodes)
    return list(found.values())


def data_of(cells: Iterable[Cell]) -> list[DataNeed]:
    """The data sets of cells, each once."""
    found = {}
    for cell in cells:
        config = cell.config["dataset"]
        wanted = _data_set(config)
        found[wanted or config.get("name")] = DataNeed(
            str(cell.labels["dataset"]), wanted, bool(config.get("streaming"))
        )
    return list(found.values())


def is_on_hub(cell: Cell) -> bool:
    """Whether anything that a cell reads may come from a hub."""
    data = _data_set(cell.config["dataset"])
    read = [*_models(cell.config["pair"]), *([data] if data else [])]
    return any(not Path(one.name).expanduser().exists() for one in read)


def nodes_of(cell: Cell) -> int:
    """Verified positions of a cell's tree; NODES where that is not known before it is searched for."""
    if "tree" not in cell.labels:
        return 1
    tree = cell.config["tree"]
    known = tree.get("num_nodes") or tree.get("total_token")
    if known:
        return int(known)
    if cell.tree_file is not None and not cell.tree_file.is_file():
        return NODES
    try:
        return int(build(tree).num_nodes)
    except (InvalidInput, AttributeError):
        return NODES


def _models(pair: Mapping[str, Any]) -> tuple[Wanted, ...]:
    """Pairs that are made here say by a fingerprint what they are made from; others are read."""
    if "fingerprint" in pair:
        return ()
    return tuple(
        Wanted("model", str(pair[role]), pair.get(f"{role}_revision"))
        for role in ("target", "draft")
        if pair.get(role)
    )


def _shapes(pair: Mapping[str, Any]) -> tuple[Shape, ...]:
    shape = PAIR_SHAPES.get(str(pair.get("shape")))
    return (shape.target, shape.draft) if shape else ()


def _trained(pair: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the folders of a pair that is trained here, which its fingerprint joins."""
    return () if "shape" in pair else tuple(filter(None, str(pair.get("fingerprint") or "").split("-")))


def _data_set(data: Mapping[str, Any]) -> Wanted | None:
    place = data.get("path") or data.get("repo")  # a path takes the repository's place
    if place is None:
        return None
    folder = f"{data['config']}/" if data.get("config") else ""
    return Wanted("dataset", str(place), data.get("revision"), folder)


def named(names: Sequence[str], most: int = 6) -> str:
    """Names for a line, the first few of many."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def repositories_of(pairs: Iterable[PairNeed], data: Iterable[DataNeed]) -> list[Wanted]:
    """Whatever is to be read of a hub or from local places, each once."""
    found = [one for pair in pairs for one in pair.models] + [one.wanted for one in data if one.wanted]
    return list(dict.fromkeys(found))
