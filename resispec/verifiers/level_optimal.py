r"""Optimal transport over levels: all nodes of a level compete at once for what parents may give.

Levels are decided from the root down. Each node n of a level has a weight c_n: the probability that
the walk passes n given all tokens drafted so far, averaged over the drafts below; the root's is 1.
A token y below n may get c_n p_n(y) at most. All drafts of the next level compete by scores, as the
siblings of `optimal` do. But drafts of different parents have different laws, and a parent should
win as often as its weight says. So the score of each of the B children of n has the distribution
function u^e with e = c_n / (B C), where C is the sum of the weights: the largest score of all is
uniform, and belongs to a child of n with probability c_n / C. Within its share each parent is a
separate problem, see `transport`. A winner's token y is accepted with probability
min(1, c_n p_n(y) / m_n(y)); the chance to win and be accepted, given all drafts, is the child's
weight.

The mass that parent n could not pass on is s_n, with which the walk stops at n; the final token
then has the law (c_n p_n - m_n)+. Since the weights were fixed level by level, a verdict is drawn
from the deepest level up: stop at node n of level l, given that the walk stops no deeper, with
probability s_n / (1 - T_l), where T_l is the mass that all parents of the level passed on. Averaged
over the drafts below level l that is s_n.

`traversal_optimal` instead lets siblings use only what earlier siblings left, so a subtree cannot
win over another because of its drafted tokens. On a chain both are Block Verification (arXiv
2403.10444), except for nodes that are too light to compete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from resispec.core import Draws, Tree, Verdict
from resispec.distributions import normalise, quotient
from resispec.errors import InvalidInput
from resispec.trees import Topology, kept_with_topology
from resispec.verifiers.base import Outcomes, require_draws
from resispec.verifiers.max_score_transport import (
    Curve,
    group_sums,
    prefix_sums,
    ratio_groups,
    transport,
    win_masses,
)
from resispec.verifiers.registry import register
from resispec.verifiers.sample_outcome import draw_from, read_verdict

TINY = torch.finfo(torch.float64).tiny
"""The least normal number, below which a slope or a mass counts as 0."""
LEAST_WEIGHT = 3e-4
"""Nodes of smaller weight do not compete: the walk stops there instead, which is exact.

To examine lighter nodes would take time for tokens that are hardly ever emitted. On trees of many
thousands of nodes, whose weights are all small, this limit loses some acceptance.
"""


@register("level_optimal")
@dataclass(frozen=True)
class LevelOptimal:
    """A verifier that decides a tree level by level; defined for independent draws.

    bins: number of groups of tokens with nearly equal p / q of a parent, as for `Optimal`. classes:
    number of equally likely ranges of the largest score; within a range, scores do not depend on
    the token. The law is exact for any numbers; the acceptance lost shrinks as they grow. Raises
    InvalidInput for fewer than 2.
    """

    bins: int = 256
    classes: int = 32

    def __post_init__(self) -> None:
        for name, number in (("bins", self.bins), ("classes", self.classes)):
            if number < 2:
                raise InvalidInput(f"level_optimal: {number} {name}; allowed: at least 2")

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """Draw from the law of `outcomes`, reading laws only of competing nodes and of the last.

        The host waits for the device at every level. Raises InvalidInput for draws other than IID,
        and FloatingPointError when it would draw from an invalid law, see `read_verdict`.
        """
        masses = _Masses.at_the_root(target_probs)
        residuals: dict[int, Tensor] = {}
        for level in _competing_levels(tree.topology, masses.weights):
            laws = self._decide(level, masses, tree, target_probs, draft_probs)
            residuals |= zip(level.parents.tolist(), laws, strict=True)

        def final_at(node: Tensor) -> Tensor:
            law = target_probs[node][0]
            return normalise(residuals.get(int(node), law), law)

        outcome = draw_from(
            masses.stops(tree.topology).to(target_probs.dtype), final_at, tree, generator
        )
        return read_verdict(outcome.tolist(), tree.topology, target_probs.dtype)

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """See `Verifier.outcomes`. Raises InvalidInput for draws other than IID."""
        masses, final = _Masses.at_the_root(target_probs), target_probs.clone()
        for level in _levels(tree.topology, target_probs.device):
            laws = self._decide(level, masses, tree, target_probs, draft_probs)
            final[level.parents] = normalise(laws, final[level.parents])
        return Outcomes(masses.stops(tree.topology).to(final.dtype), final)

    def _decide(
        self, level: _Level, masses: _Masses, tree: Tree, target_probs: Tensor, draft_probs: Tensor
    ) -> Tensor:
        """Fill in the masses of one level's parents and children.

        Returns the parents' residuals (K, V), not normalised; a parent with none left keeps its
        whole law.
        """
        require_draws("level_optimal", tree.draws, Draws.IID)
        weights, tokens = masses.weights[level.parents], tree.tokens[level.children]
        p, q = (probs.index_select(0, level.parents) for probs in (target_probs, draft_probs))
        competes = weights >= LEAST_WEIGHT
        shares, target, proposed, wins = self._compete(
            level, torch.where(competes, weights, 0.0), (p, q), tokens
        )
        place = level.owners, tokens
        accept = quotient(target[place], proposed[place])
        masses.weights[level.children] = torch.where(
            competes[level.owners], wins * accept.clamp_max(1), 0.0
        )
        residuals = target.sub_(proposed).clamp_min_(0)
        masses.ending[level.parents] = torch.where(competes, residuals.sum(-1) * shares, weights)
        return residuals

    def _compete(
        self, level: _Level, weights: Tensor, laws: tuple[Tensor, Tensor], tokens: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Let all children of a level compete for what their parents may give.

        weights: (K,), the parents', 0 for a parent that does not compete. laws: the parents' p and
        q, (K, V). tokens: (J,) int64, the children's. Returns the chance (K,) that one of a
        parent's children wins; given that one does, what the parent may give and the law m of the
        winner's token, both (K, V); and the chance (J,) of every child to win, given all tokens. p
        is overwritten.
        """
        p, q = laws
        if len(tokens) == 1:  # a single child wins whatever its score
            ones = torch.ones_like(weights)
            return ones, p.mul_(weights.to(p.dtype)), q, ones
        exponents = quotient(weights / level.counts, weights.sum())
        # The ends of the classes, as values of the largest score.
        ends = torch.linspace(0, 1, self.classes + 1, dtype=torch.float64, device=p.device)
        blind = ends ** exponents[level.owners, None]
        wins = win_masses(blind)
        curve = Curve(*prefix_sums(torch.stack((blind.diff(dim=-1), wins))[:, level.first]))
        shares = wins.sum(-1)[level.first] * level.counts
        target = p.mul_(quotient(weights, shares).to(p.dtype)[:, None])
        groups = ratio_groups(target, q, curve.slopes[:, -1:].clamp_min(TINY), self.bins)
        ratio, scores = transport(*group_sums(target, q, groups, self.bins), curve)
        functions = scores.of(level.owners, groups[level.owners, tokens])
        functions = torch.where((weights > 0)[level.owners, None], functions, 1.0)
        proposed = ratio.to(q.dtype).gather(-1, groups).mul_(q)
        return shares, target, proposed, win_masses(functions).sum(-1)


class _Level(NamedTuple):
    """Parents of a level and their children.

    parents: (K,) int64. counts: (K,) int64, each parent's number of children. children: (J,) int64,
    the children of one parent side by side. owners: (J,) int64, the place of each child's parent
    among `parents`. first: (K,) int64, the place of each parent's first child among `children`.
    """

    parents: Tensor
    counts: Tensor
    children: Tensor
    owners: Tensor
    first: Tensor

    @classmethod
    def of(cls, topology: Topology, parents: Sequence[int], device: torch.device) -> _Level:
        """The level of these parents, each of which has children."""
        children = [topology.children[node] for node in parents]
        counts = [len(family) for family in children]
        owners = [place for place, count in enumerate(counts) for _ in range(count)]
        columns = parents, counts, [*chain(*children)], owners, [0, *accumulate(counts[:-1])]
        return cls(*(torch.tensor(numbers, device=device) for numbers in columns))


@kept_with_topology
def _levels(topology: Topology, device: torch.device) -> tuple[_Level, ...]:
    """The levels that have children, from the root down."""
    parents = [[node for node in nodes if topology.children[node]] for nodes in topology.levels]
    return tuple(_Level.of(topology, nodes, device) for nodes in parents if nodes)


def _competing_levels(topology: Topology, weights: Tensor) -> Iterator[_Level]:
    """The levels, with the parents that compete only.

    weights: (N,), read when a level's turn has come.
    """
    for nodes in topology.levels:
        heavy = (weights[nodes[0] : nodes[-1] + 1] >= LEAST_WEIGHT).tolist()
        parents = [node for node in compress(nodes, heavy) if topology.children[node]]
        if not parents:
            return
        yield _Level.of(topology, parents, weights.device)


class _Masses(NamedTuple):
    """Masses of the nodes so far, (N,) float64 each.

    weights: the probability that the walk passes each node, given the tokens down to its level.
    ending: the part of a node's weight that is left, on average, after its children got theirs;
    negative for a node without children, or without examined children, where all is left.
    """

    weights: Tensor
    ending: Tensor

    @classmethod
    def at_the_root(cls, target_probs: Tensor) -> _Masses:
        """The masses before anything is decided."""
        weights = torch.zeros_like(target_probs[:, 0], dtype=torch.float64)
        weights[0].fill_(1)  # `weights[0] = 1` copies the number from the host
        return cls(weights, torch.full_like(weights, -1))

    def stops(self, topology: Topology) -> Tensor:
        """The probability (N,) of stopping at each node, given all drafted tokens."""
        depths = _depths(topology, self.weights.device)
        ending = torch.where(self.ending < 0, self.weights, self.ending)
        zeros = self.weights.new_zeros(topology.num_levels)
        passed = zeros.index_add(0, depths, self.weights)
        rest = 1 - passed + zeros.index_add(0, depths, ending)
        # Drafts of no chance (masses below the normal numbers) can be refused although all mass was
        # passed on. A walk that comes back to such a level stops there.
        is_spent = rest < TINY
        ending = torch.where(is_spent[depths], self.weights, ending)
        rest = torch.where(is_spent, 1.0, rest)
        # The chance that the walk stops higher, given that it stops no deeper.
        goes_up = ((1 - passed).clamp_min(0) / rest).clamp_max(1)
        no_deeper = pad(goes_up[1:], (0, 1), value=1.0).flip(0).cumprod(0).flip(0)
        return (no_deeper / rest)[depths] * ending


@kept_with_topology
def _depths(topology: Topology, device: torch.device) -> Tensor:
    return topology.depths.to(device)
