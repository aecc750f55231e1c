"""A trial of a verifier on a made-up tree, before models are read,
shows what it is not defined for.
"""

import torch

from resispec.core import DrawsKind, Tree
from resispec.errors import NotDefined
from resispec.trees import Topology
from resispec.verifiers.base import Verifier, outcomes_of


def rehearse(verifier: Verifier, draws: DrawsKind, topology: Topology) -> None:
    """Verify a tree of this topology with siblings that all differ and laws that are uniform.

    Raises InvalidInput, as the verifier does, for draws or a topology that it is not defined for.
    """
    num_siblings = max(map(len, topology.children))
    draws.check_siblings(num_siblings)
    size = num_siblings + 1
    tokens, laws = (
        torch.zeros(topology.num_nodes, dtype=torch.int64),
        torch.ones(topology.num_nodes, size),
    )
    for children in topology.children:
        tokens[list(children)] = torch.arange(len(children))
    outcomes_of(verifier, Tree(topology, tokens, draws), laws / size, laws / size)


def is_defined_on(verifier: Verifier, draws: DrawsKind, topology: Topology) -> bool:
    """Whether `rehearse` raises no NotDefined; any other error of the verifier is raised."""
    try:
        rehearse(verifier, draws, topology)
    except NotDefined:
        return False
    return True
