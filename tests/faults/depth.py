"""Faults that begin some levels below the root."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from faults.parts import Fault, Sequential, Where
from faults.walk import Walk
from resispec.distributions import draw_one
from resispec.trees import chain
from resispec.verifiers import Law, SiblingRule
from resispec.verifiers.level_optimal import LevelOptimal


@dataclass(frozen=True)
class OtherBelow(Walk):
    """The walk decides by another rule from a depth on."""

    other: SiblingRule = field(default_factory=Sequential)
    first_depth: int = 1

    def rule_at(self, tree, place):
        return self.other if int(tree.topology.depths[place]) >= self.first_depth else self.rule


def more_often():
    """From depth 3 on siblings are accepted 1.15 times as often as they may be; `outcomes` says so.

    Trees of three levels have no inner node so deep.
    """

    class Told(OtherBelow):
        outcomes = Walk.true_outcomes

    rule = Sequential(chance=lambda sibling: (1.15 * sibling.p / sibling.q).clamp_max(1))
    return Told(other=rule, first_depth=3)


@dataclass(frozen=True)
class CoinAgain(Walk):
    """The random number that decided at a node decides again two levels below it.

    What was accepted with it is likelier to be accepted again, which trees of two levels do not show.
    coins: of the walk so far, from the root down.
    """

    coins: list[float] = field(default_factory=list)

    def draw(self, node, generator):
        depth = int(node.tree.topology.depths[node.place])
        del self.coins[depth:]
        coin = float(torch.rand((), generator=generator, dtype=torch.float64))
        self.coins.append(self.coins[depth - 2] if depth >= 2 else coin)
        index = int((node.law.select.cumsum(-1) <= self.coins[depth]).sum())
        if index < len(node.children):
            return index, node.siblings[index]
        return None, draw_one(node.law.residual, generator)

    def drawn(self, node):
        """On a chain of three: the coin lies below the chance that it met first."""
        if int(node.tree.topology.depths[node.place]) < 2:
            return node.law
        root = self.node_at(node.tree, 0, node.target_probs, node.draft_probs)
        chance = root.law.select.clamp_min(1e-30)
        return Law(torch.minimum(node.law.select, chance) / chance, node.law.residual)


class LevelsForget(LevelOptimal):
    """Whole levels at once: from depth 3 on a node stops as if it had passed nothing on to its children."""

    def _decide(self, level, masses, tree, target_probs, draft_probs):
        kept = super()._decide(level, masses, tree, target_probs, draft_probs)
        deep = level.parents[tree.topology.depths[level.parents] >= 3]
        masses.ending[deep] = masses.weights[deep]
        return kept


def no_residual():
    """From depth 4 on the token after a rejection is drawn from the target itself, unknown to `outcomes`."""
    return OtherBelow(other=Sequential(left=lambda sibling: sibling.target), first_depth=4)


FAULTS = [
    Fault("acceptance times 1.15 from depth 3", more_often, Where.LAW, 0.0060, vocab=4, topology=chain(4)),
    Fault("coin used again two levels below", CoinAgain, Where.VERIFY, 0.0793, vocab=4, topology=chain(3)),
    Fault(
        "levels forget what they passed on, from depth 3",
        LevelsForget,
        Where.LAW,
        0.0936,
        vocab=4,
        topology=chain(4),
    ),
    Fault("no residual from depth 4", no_residual, Where.VERIFY, 0.0507, vocab=3, topology=chain(5)),
]
