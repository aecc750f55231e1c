"""A trial of a verifier on a made-up tree, before models are read, to see if it is defined."""

import torch

from resispec.core import DrawsKind, Tree
from resispec.errors import InvalidInput, NotDefined
from resispec.trees import Topology
from resispec.verifiers.base import Verifier, law_of, outcomes_of, verifier_name
from resispec.verifiers.top_down import applied_rule


def rehearse(verifier: Verifier, draws: DrawsKind, topology: Topology) -> None:
    """Verify a tree of this topology with siblings that all differ and laws that are uniform.

    Raises InvalidInput, as the verifier does, for draws or a topology that it is not defined for,
    and for a verifier, or the rule that it applies, that changes its inputs in place.
    """
    num_siblings = max(map(len, topology.children))
    draws.check_siblings(num_siblings)
    size = num_siblings + 1
    with torch.inference_mode(False):  # there alone tensors count their changes
        tokens = torch.zeros(topology.num_nodes, dtype=torch.int64)
        target_probs, draft_probs = (
            torch.full((topology.num_nodes, size), 1 / size) for _ in range(2)
        )
    for children in topology.children:
        tokens[list(children)] = torch.arange(len(children))
    given = {"tokens": tokens, "target_probs": target_probs, "draft_probs": draft_probs}
    counts = {name: tensor._version for name, tensor in given.items()}
    outcomes_of(verifier, Tree(topology, tokens, draws), target_probs, draft_probs)
    if (rule := applied_rule(verifier)) is not None and topology.children[0]:
        # `outcomes` hands copies on, and `verify` rows of the laws themselves.
        siblings = tokens[list(topology.children[0])]
        law_of(rule, target_probs[0], draft_probs[0], siblings, draws)
    for name, tensor in given.items():
        if tensor._version != counts[name]:
            raise InvalidInput(f"{verifier_name(verifier)} changed its input {name} in place")


def is_defined_on(verifier: Verifier, draws: DrawsKind, topology: Topology) -> bool:
    """Whether `rehearse` raises no NotDefined; any other error of the verifier is raised."""
    try:
        rehearse(verifier, draws, topology)
    except NotDefined:
        return False
    return True
