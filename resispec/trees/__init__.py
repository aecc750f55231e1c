"""Topologies, the files that hold them, and the search for the best one."""

from resispec.trees.topology import (
    Topology,
    chain,
    complete,
    from_child_counts,
    from_widths,
    parallel_chains,
    root_only,
    union,
)

__all__ = [
    "Topology",
    "chain",
    "complete",
    "from_child_counts",
    "from_widths",
    "parallel_chains",
    "root_only",
    "union",
]
