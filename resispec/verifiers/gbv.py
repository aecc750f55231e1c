"""Greedy multi-path Block Verification (arXiv 2602.16961): the best of several paths as a block.

Written from the paper's abstract, its reviews and its authors' code, which orders tokens by
min(1, p / q) and breaks ties one way in the choice and another way in its law, so it is not exact.
Here the order is strict.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from resispec.core import Draws, Tree, Verdict
from resispec.errors import NotDefined
from resispec.trees import Topology, chain
from resispec.verifiers.base import Outcomes, require_draws
from resispec.verifiers.block import Block
from resispec.verifiers.registry import register


@register("gbv")
@dataclass(frozen=True)
class GreedyMultiPath:
    """GBV chooses one of K i.i.d. paths, and runs Block Verification on it
    with the chosen path's law.

    After each prefix, tokens are ordered by p / q, and by their ids if equal. Paths are compared at
    the first token in which they differ, and the largest path is chosen. With m(u) the draft's mass
    of a prefix u and A(u) the mass of all prefixes below u in this order, the chosen path begins
    with u with probability (A + m)^K - A^K, from which its law after each prefix follows.
    """

    reads_numbers: ClassVar[bool] = True

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """Draw a verdict.

        Raises InvalidInput unless the tree is paths of one length and draws are IID.
        """
        nodes, path, target, laws = self._chosen(tree, target_probs, draft_probs)
        verdict = Block().verify(path, target, laws, generator)
        return Verdict(nodes[1 : 1 + verdict.num_accepted], verdict.tokens)

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from, in the target's precision.

        Raises InvalidInput as `verify`.
        """
        nodes, path, target, laws = self._chosen(tree, target_probs, draft_probs)
        outcomes, final = Block().outcomes(path, target, laws), target_probs.clone()
        stop = torch.zeros_like(target_probs[:, 0])
        stop[list(nodes)] = outcomes.stop.to(stop.dtype)
        final[list(nodes)] = outcomes.final.to(final.dtype)
        return Outcomes(stop, final)

    def _chosen(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor
    ) -> tuple[tuple[int, ...], Tree, Tensor, Tensor]:
        """The chosen path: nodes, root first; a chain of them; p and the path's laws, (L+1, V)."""
        require_draws("gbv", tree.draws, Draws.IID)
        paths, tokens = _paths(tree.topology), tree.tokens.tolist()
        target, draft = target_probs.double(), draft_probs.double()
        laws, below, mass, count = [], draft.new_zeros(()), draft.new_ones(()), len(paths)
        for level in range(tree.topology.num_levels - 1):
            node = paths[0][level]
            # where q is 0 nothing was drafted
            ratio = (target[node] / draft[node]).nan_to_num(torch.inf)
            order = ratio.argsort(stable=True)
            rank = order.argsort().tolist()
            sums = draft[node][order].cumsum(0)
            first = torch.empty_like(sums).scatter(0, order, sums - draft[node][order])
            low, width = below + mass * first, mass * draft[node]
            powers = _powers(low + width, low, count)
            laws.append(draft[node] * powers / _powers(below + mass, below, count))
            winner = max((tokens[path[level + 1]] for path in paths), key=lambda token: rank[token])
            paths = [path for path in paths if tokens[path[level + 1]] == winner]
            # Only ratios count, so both are rescaled to sum to 1.
            total = low[winner] + width[winner]
            below, mass = low[winner] / total, width[winner] / total
        rows = list(paths[0])
        laws.append(draft[rows[-1]])  # the law of a leaf, never read
        path = Tree(chain(len(rows) - 1), tree.tokens[rows], Draws.IID)
        return paths[0], path, target[rows], torch.stack(laws)


def _paths(topology: Topology) -> list[tuple[int, ...]]:
    """The nodes of each path, the root first.

    Raises InvalidInput if lengths differ or a path branches.
    """
    branches = any(len(children) > 1 for children in topology.children[1:])
    if branches or len({len(level) for level in topology.levels[1:]}) > 1:
        raise NotDefined(
            "gbv: a tree that branches below its root; allowed: paths of one length (tree=chains)"
        )
    return [(0, *topology.path_to(leaf)) for leaf in topology.levels[-1]]


def _powers(high: Tensor, low: Tensor, count: int) -> Tensor:
    """The quotient (high^K - low^K) / (high - low), K = count, as the sum of high^(K-1-j) low^j."""
    total = torch.ones_like(high)
    for power in range(1, count):
        total = total * high + low**power
    return total
