r"""Optimal transport over whole levels: all nodes of a level compete at once for what their parents may give.

Levels are decided from the root down. A node n of a level has a weight c_n, the probability that it is passed
given all tokens drafted so far: averaged over what lies below, and 1 for the root. A token y below n may get
c_n p_n(y) at most. All drafts of the next level compete by scores, as the siblings of `optimal` do, but those
of different parents have different laws, and a parent should win as often as its weight says. So the score of
each of the B children of n has the distribution function u^e with e = c_n / (B C), where C is the sum of the
weights: the largest score of all is uniform, and belongs to a child of n with probability c_n / C. Within its
share each parent is a problem of its own, see `transport`. A winner's token y is accepted with probability
min(1, c_n p_n(y) / m_n(y)), and the chance to win and be accepted, given all drafts, is the child's weight.

What a parent could not pass on is the mass s_n with which the walk stops there, and (c_n p_n - m_n)+ the law
of the final token. Since the weights were fixed level by level, an outcome is drawn from the deepest level
up: stop at node n of level l, given that the walk stops no deeper, with probability s_n / (1 - T_l), where
T_l is what all parents of the level passed on. Averaged over the drafts below level l that is s_n.

`traversal_optimal` instead lets siblings use only what those before them left, so a subtree cannot win over
another by what was drafted in it. On a chain both are Block Verification (arXiv 2403.10444).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from resispec.core import Draws, Tree, Verdict
from resispec.distributions import normalise
from resispec.errors import InvalidInput
from resispec.trees import Topology
from resispec.verifiers.base import Outcomes, require_draws
from resispec.verifiers.registry import register
from resispec.verifiers.transport import TINY, Curve, group_sums, prefix_sums, transport, win_masses
from resispec.verifiers.whole import draw_outcome, read_verdict

LEAST_WEIGHT = 1e-6
"""Nodes of smaller weight do not compete: the walk stops there instead, which is exact and loses nothing."""


@register("level_optimal")
@dataclass(frozen=True)
class LevelOptimal:
    """Decides level by level; defined for independent draws.

    bins: groups of tokens with nearly equal p / q of a parent, as for `Optimal`. classes: equally likely
    values of the largest score; within one of them scores are drawn without regard to the token. The law is
    exact for any number of both; what they give away shrinks with it. Raises InvalidInput for fewer than 2.
    """

    bins: int = 256
    classes: int = 32

    def __post_init__(self) -> None:
        for name, found in (("bins", self.bins), ("classes", self.classes)):
            if found < 2:
                raise InvalidInput(f"level_optimal: {found} {name}; allowed: at least 2")

    def verify(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator) -> Verdict:
        """Draw from `outcomes`; raises FloatingPointError when that is no law, see `read_verdict`."""
        drawn = draw_outcome(self, tree, target_probs, draft_probs, generator)
        return read_verdict(drawn.tolist(), tree.topology, target_probs.dtype)

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """See `Verifier.outcomes`. Raises InvalidInput for draws other than IID."""
        device = target_probs.device
        weights = torch.zeros(tree.topology.num_nodes, dtype=torch.float64, device=device)
        weights[0] = 1
        ending = weights.new_full(weights.shape, -1)  # of a leaf its weight, which is not known yet
        final = target_probs.clone()
        levels, depths = _levels(tree.topology, device)
        for level in levels:
            require_draws("level_optimal", tree.draws, (Draws.IID,))
            p, q = target_probs[level.parents], draft_probs[level.parents]
            chances, kept = self._compete(weights[level.parents], p, q, tree.tokens[level.children], level)
            weights[level.children] = chances
            ending[level.parents] = kept.sum(-1, dtype=torch.float64)
            final[level.parents] = normalise(kept, p)
        ending = torch.where(ending < 0, weights, ending)
        return Outcomes(_stops(depths, len(tree.topology.levels), weights, ending).to(final.dtype), final)

    def _compete(
        self, weights: Tensor, p: Tensor, q: Tensor, tokens: Tensor, level: _Level
    ) -> tuple[Tensor, Tensor]:
        """One level: the weights (J,) of its parents' children, and what the parents keep (K, V).

        weights: (K,) float64, of the parents. p, q: (K, V), their laws. tokens: (J,) int64, the children's.
        """
        competes = weights >= LEAST_WEIGHT
        competing = torch.where(competes, weights, 0.0)
        exponents = competing / level.counts / competing.sum().clamp_min(TINY)
        blind = self._quantiles(p.device) ** exponents[level.owners, None]
        wins = win_masses(blind)
        curve = Curve(prefix_sums(blind.diff(dim=-1)[level.first]), prefix_sums(wins[level.first]))
        shares = wins.sum(-1)[level.first] * level.counts
        target = p * (competing / shares.clamp_min(TINY)).to(p.dtype)[:, None]
        groups = self._groups(target, q, curve)
        ratio, scores = transport(
            group_sums(target, groups, self.bins), group_sums(q, groups, self.bins), curve
        )
        proposed = ratio.to(q.dtype).gather(-1, groups).mul_(q)
        place = level.owners, tokens
        accept = (target[place] / proposed[place].clamp_min(torch.finfo(p.dtype).tiny)).clamp_max(1)
        drawn = torch.where(competes[level.owners, None], scores.of(level.owners, groups[place]), 1.0)
        kept = (target - proposed).clamp_min_(0) * shares[:, None].to(p.dtype)
        kept = torch.where(competes[:, None], kept, p * weights[:, None].to(p.dtype))
        return win_masses(drawn).sum(-1) * accept, kept

    def _quantiles(self, device: torch.device) -> Tensor:
        """Between which values (R + 1,) of the largest score the classes lie."""
        return torch.linspace(0, 1, self.classes + 1, dtype=torch.float64, device=device)

    def _groups(self, target: Tensor, q: Tensor, curve: Curve) -> Tensor:
        """Every token's group (K, V) int64, equally wide in sqrt(p / q) up to the largest chance to win."""
        last = self.bins - 1
        place = (target / q).mul_((last**2 / curve.slopes[:, -1:].clamp_min(TINY)).to(q.dtype)).sqrt_()
        return place.nan_to_num_(0.0).clamp_max_(last).long()  # 0 / 0: a token without mass, in any group


class _Level(NamedTuple):
    """Parents of a level and their children.

    parents: (K,) int64. counts: (K,) float64, their numbers of children. children: (J,) int64, those of one
    parent side by side. owners: (J,) int64, the place of each one's parent. first: (K,) int64, the place of
    each parent's first child.
    """

    parents: Tensor
    counts: Tensor
    children: Tensor
    owners: Tensor
    first: Tensor


@lru_cache(maxsize=64)
def _levels(topology: Topology, device: torch.device) -> tuple[tuple[_Level, ...], Tensor]:
    """The levels that have children, from the root down, and the depths (N,) of all nodes."""
    found = []
    for nodes in topology.levels:
        parents = [node for node in nodes if topology.children[node]]
        if parents:
            counts = torch.tensor([len(topology.children[node]) for node in parents])
            tensors = (
                torch.tensor(parents),
                counts.double(),
                torch.tensor([child for node in parents for child in topology.children[node]]),
                torch.arange(len(parents)).repeat_interleave(counts),
                counts.cumsum(0) - counts,
            )
            found.append(_Level(*(tensor.to(device) for tensor in tensors)))
    return tuple(found), topology.depths.to(device)


def _stops(depths: Tensor, num_levels: int, weights: Tensor, ending: Tensor) -> Tensor:
    """The probability (N,) of stopping at each node, given all drafted tokens.

    depths: (N,) int64, below `num_levels`. weights: (N,), with which the nodes are passed, given the tokens
    down to their level. ending: (N,), what is left of that on average when their children have got theirs.
    """
    zeros = weights.new_zeros(num_levels)
    passed = zeros.index_add(0, depths, weights)
    rest = (1 - passed + zeros.index_add(0, depths, ending)).clamp_min(TINY)
    goes_up = ((1 - passed).clamp_min(0) / rest).clamp_max(1)  # stops higher, given that it stops no deeper
    no_deeper = pad(goes_up[1:], (0, 1), value=1.0).flip(0).cumprod(0).flip(0)
    return (no_deeper / rest)[depths] * ending
