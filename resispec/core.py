"""The vocabulary that every part of resispec shares.

Dimension letters mean the same everywhere: N nodes of a tree (the root counted), D levels, B
siblings under one parent, V tokens of the vocabulary, L committed tokens.
`target_probs` is always p and `draft_probs` always q.
"""

from dataclasses import dataclass

from torch import Tensor

from resispec.draws import Draws, DrawsKind
from resispec.errors import InvalidInput
from resispec.trees import Topology

__all__ = ["Draft", "Draws", "DrawsKind", "Tree", "Verdict"]


@dataclass(frozen=True)
class Tree:
    """A topology whose nodes carry tokens.

    tokens: (N,) int64; node 0, the root, is the last committed token.
    draws: the way in which every node's children were chosen.
    """

    topology: Topology
    tokens: Tensor
    draws: DrawsKind

    def check_siblings(self) -> None:
        """Raise InvalidInput if siblings have one token twice although their draws give none twice.

        A rule would count it twice.
        """
        if not self.draws.are_distinct:
            return
        for parents, children in self.topology.families:
            siblings = self.tokens[children]
            ordered = siblings.sort(-1).values
            has_twice = (ordered[:, 1:] == ordered[:, :-1]).any(-1).tolist()
            if any(has_twice):
                place = has_twice.index(True)
                raise InvalidInput(
                    f"siblings below node {int(parents[place])} hold "
                    f"{siblings[place].tolist()[:8]}; allowed for {self.draws} draws: different "
                    "tokens"
                )


@dataclass(frozen=True)
class Draft:
    """A drafter's proposal for one step.

    tree: the drafted tree.
    probs: (N, V) float32 or better; row n is the draft's law q at node n, from which its children
    were drawn in the way that `tree.draws` says. Rows of leaves are never read.
    """

    tree: Tree
    probs: Tensor


@dataclass(frozen=True)
class Verdict:
    """The part of one tree that a verifier keeps.

    path: accepted node ids from the root's child downwards; empty when nothing was accepted.
    tokens: the emitted tokens: the tokens of `path`, then the final token, drawn from the residual
    or, at a leaf, from the target's law.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        """The number of accepted drafted tokens, in [0, D - 1]."""
        return len(self.path)

    @property
    def num_emitted(self) -> int:
        """The number of emitted tokens, `num_accepted + 1`."""
        return len(self.tokens)
