"""Topologies by name, as people type them: `d5b3`, `chain_4`, `best_64`, or a grow map's file."""

import re
from collections.abc import Callable
from pathlib import Path

from resispec.errors import InvalidInput
from resispec.trees import grow_map
from resispec.trees.topology import Topology, chain, complete, root_only

SHAPES = Path(__file__).parent / "shapes"
"""The folder of the shapes of `best_N`: grow maps KIND.N.json, each of which states its origin."""


def find(tree: str | Path | Topology, draws: str) -> Topology:
    """The topology with a name, for siblings that are drawn in the way that `draws` names.

    `dDbB` is a complete tree of D levels, the root counted, with B children per node; `chain_K` is
    a path of K drafted tokens; `root` drafts nothing; a name that ends in .json or .pt is a grow
    map's file. `best_N` is a shape that comes with this library: the tree of N nodes that emitted
    most tokens per step on the library's embedded pair at temperature 1, with the best exact
    verifier for independent draws, or for draws that have an order. Nothing is measured on the
    models at hand: a pair that agrees more wants more levels, see `resispec.trees.search`. Raises
    InvalidInput for an unknown name or a file that holds no topology.
    """
    if isinstance(tree, Topology):
        return tree
    name = str(tree)
    if name.endswith((".json", ".pt")):
        return grow_map.load(name)
    for pattern, make in _PATTERNS.items():
        if match := re.fullmatch(pattern, name):
            return make(*map(int, match.groups()))
    kind = "iid" if draws == "iid" else "ordered"
    sizes = sorted(
        int(path.stem.removeprefix(f"{kind}.")) for path in SHAPES.glob(f"{kind}.*.json")
    )
    if name in (f"best_{size}" for size in sizes):
        return grow_map.load(SHAPES / f"{kind}.{name.removeprefix('best_')}.json")
    best = " or ".join(f"best_{size}" for size in sizes)
    raise InvalidInput(
        f"unknown tree {name!r}; allowed: root, d5b3, chain_4, {best}, or a .json or .pt grow map"
    )


_PATTERNS: dict[str, Callable[..., Topology]] = {
    "root": root_only,
    r"d(\d{1,5})b(\d{1,5})": complete,
    r"chain_(\d{1,5})": chain,
}
