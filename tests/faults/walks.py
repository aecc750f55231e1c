"""Faults that only deeper trees show."""

from dataclasses import dataclass, field, replace

import torch

from resispec.distributions import draw_one, normalise
from resispec.trees import chain
from resispec.verifiers import Block, Law, SiblingRule, Standard, Traversal
from resispec.verifiers.level_optimal import LevelOptimal
from tests.faults.parts import FORKED, Fault, Sequential, Walk, Where


@dataclass(frozen=True)
class OtherBelow(Walk):
    """The walk decides by another rule from a depth on."""

    other: SiblingRule = field(default_factory=Sequential)
    first_depth: int = 1

    def rule_at(self, tree, place):
        return self.other if int(tree.topology.depths[place]) >= self.first_depth else self.rule


class OtherBelowAndTold(OtherBelow):
    """`outcomes` says so, too."""

    outcomes = Walk.true_outcomes


def more_often():
    """From depth 3 on siblings are accepted 1.15 times as often as they may be.

    Trees of three levels have no inner node so deep.
    """
    rule = Sequential(chance=lambda sibling: (1.15 * sibling.p / sibling.q).clamp_max(1))
    return OtherBelowAndTold(other=rule, first_depth=3)


def no_residual():
    """From depth 4 on rejections draw from the target itself, unknown to `outcomes`."""
    return OtherBelow(other=Sequential(left=lambda sibling: sibling.target), first_depth=4)


@dataclass(frozen=True)
class CoinAgain(Walk):
    """The random number that decided at depth `first` decides again at depth `again`.

    What was accepted with it is likelier to be accepted again, which trees of fewer levels do not
    show. coins: of the walk so far, from the root down.
    """

    first: int = 0
    again: int = 2
    coins: list[float] = field(default_factory=list)

    def draw(self, node, generator):
        depth = int(node.tree.topology.depths[node.place])
        del self.coins[depth:]
        coin = float(torch.rand((), generator=generator, dtype=torch.float64))
        self.coins.append(self.coins[self.first] if depth == self.again else coin)
        index = int((node.law.select.cumsum(-1) <= self.coins[depth]).sum())
        if index < len(node.children):
            return index, node.siblings[index]
        return None, draw_one(node.law.residual, generator)

    def drawn(self, node):
        """On a chain, numbered by depth, the coin lies below the chance that it met first."""
        if node.place != self.again:
            return node.law
        met = self.node_at(node.tree, self.first, node.target_probs, node.draft_probs)
        chance = met.law.select.clamp_min(1e-30)
        return Law(torch.minimum(node.law.select, chance) / chance, node.law.residual)


def last_coin():
    return CoinAgain(again=5)


class CoinOfSiblings(Walk):
    """One random number tests all siblings of a node: a refusal makes the next one likelier."""

    def draw(self, node, generator):
        coin = float(torch.rand((), generator=generator, dtype=torch.float64))
        index = int((self.drawn(node).select.cumsum(-1) <= coin).sum())
        if index < len(node.children):
            return index, node.siblings[index]
        return None, draw_one(node.law.residual, generator)

    def drawn(self, node):
        """A sibling is accepted if the coin is below its chance and above all chances before it."""
        before = node.law.select.cumsum(-1) - node.law.select
        chances = node.law.select / (1 - before).clamp_min(1e-30)
        highest = chances.cummax(-1).values
        return Law(torch.diff(highest, prepend=torch.zeros_like(highest[:1])), node.law.residual)


class LevelsForget(LevelOptimal):
    """Whole levels at once: from depth 3 on a node stops as if it gave nothing to its children."""

    def _decide(self, level, masses, tree, target_probs, draft_probs):
        kept = super()._decide(level, masses, tree, target_probs, draft_probs)
        deep = level.parents[tree.topology.depths[level.parents] >= 3]
        masses.ending[deep] = masses.weights[deep]
        return kept


class BestSubtree(Walk):
    """Of equal siblings the walk goes on at the one below which the target likes what was drafted.

    Each of their subtrees is a fresh draft, the best of them is not. A choice that looks at no
    tokens is fine.
    """

    def child(self, node, index, token):  # noqa: ARG002 - the contract's
        equal = [child for child in node.children if node.tree.tokens[child] == token]
        return max(equal, key=lambda child: liking(node, child), default=None)


def liking(node, child):
    """The largest mass that the target gives to a token drafted below a child."""
    below = node.tree.tokens[list(node.tree.topology.children[child])]
    return float(node.target_probs[child, below].max()) if len(below) else 0.0


class WithoutWeight(Block):
    """Block verification with a final token from (p - q)+, not (w p - q)+, w the prefix's weight.

    With one drafted token both agree. vllm-ascend (issues 7807, 7808, 7839) resampled wrongly.
    """

    def verify(self, tree, target_probs, draft_probs, generator):
        verdict = super().verify(tree, target_probs, draft_probs, generator)
        if verdict.num_emitted == tree.topology.num_levels:
            return verdict
        law = residual(target_probs, draft_probs)[verdict.num_accepted]
        return replace(verdict, tokens=(*verdict.tokens[:-1], draw_one(law, generator)))

    def true_outcomes(self, tree, target_probs, draft_probs):
        right, wrong = (
            self.outcomes(tree, target_probs, draft_probs),
            residual(target_probs, draft_probs),
        )
        return replace(right, final=torch.cat((wrong[:-1], right.final[-1:])))


def residual(target_probs, draft_probs):
    """The law (N, V) of the final token at every node that has a child."""
    return normalise((target_probs - draft_probs).clamp_min(0), target_probs)


class NullMassDropped(Standard):
    """From the leaves up, no node whose children failed is rejected: its residual is renormalised.

    Top-down, and at the root, the residual is a law anyway, so only trees of three levels show it.
    """

    def law(self, *given):
        law = super().law(*given)
        return Law(law.select, normalise(law.residual, law.residual))


DEEP = {"vocab": 4, "topology": chain(4)}
FAULTS = [
    Fault("acceptance times 1.15 from depth 3", more_often, Where.LAW, 0.0060, **DEEP),
    Fault(
        "coin used again two levels below",
        CoinAgain,
        Where.VERIFY,
        0.0793,
        vocab=4,
        topology=chain(3),
    ),
    Fault(
        "coin of the root used again at depth 5",
        last_coin,
        Where.VERIFY,
        0.0138,
        vocab=3,
        topology=chain(6),
    ),
    Fault("one coin for all siblings", CoinOfSiblings, Where.VERIFY, 0.0146, vocab=4, noise=0.5),
    Fault(
        "levels forget what they passed on, from depth 3", LevelsForget, Where.LAW, 0.0936, **DEEP
    ),
    Fault(
        "no residual from depth 4", no_residual, Where.VERIFY, 0.0507, vocab=3, topology=chain(5)
    ),
    Fault("best subtree among equal siblings", BestSubtree, Where.VERIFY, 0.0444, **FORKED),
    Fault(
        "block without the prefix's weight",
        WithoutWeight,
        Where.VERIFY,
        0.0210,
        vocab=30,
        topology=chain(2),
    ),
    Fault(
        "traversal that rejects no inner node",
        lambda: Traversal(NullMassDropped()),
        Where.LAW,
        0.1443,
        **FORKED,
    ),
]
