"""Topologies, the files that hold them, and the search for the best one."""

from resispec.trees.topology import (
    MAX_NODES,
    Topology,
    chain,
    complete,
    families_by_level_on,
    families_on,
    from_child_counts,
    from_widths,
    kept_with_topology,
    parallel_chains,
    root_only,
    union,
)

__all__ = [
    "MAX_NODES",
    "Topology",
    "chain",
    "complete",
    "families_by_level_on",
    "families_on",
    "from_child_counts",
    "from_widths",
    "kept_with_topology",
    "parallel_chains",
    "root_only",
    "union",
]
