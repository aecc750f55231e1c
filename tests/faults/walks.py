"""Faults that only deeper trees show."""

from dataclasses import dataclass, field, replace

import torch

from faults.parts import FORKED, Fault, Sequential, Walk, Where
from resispec.distributions import draw_one, normalise
from resispec.trees import chain
from resispec.verifiers import Block, Law, SiblingRule, Standard, Traversal
from resispec.verifiers.level_optimal import LevelOptimal


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
    """From depth 4 on the token after a rejection is drawn from the target itself, unknown to `outcomes`."""
    return OtherBelow(other=Sequential(left=lambda sibling: sibling.target), first_depth=4)


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


class BestSubtree(Walk):
    """Of equal siblings the walk goes on at the one below which the target likes what was drafted.

    Each of their subtrees is a fresh draft, the best of them is not. A choice that looks at no tokens is
    fine.
    """

    def child(self, node, index, token):  # noqa: ARG002 - the contract's
        equal = [child for child in node.children if node.tree.tokens[child] == token]
        return max(equal, key=lambda child: liking(node, child), default=None)


def liking(node, child):
    """The largest mass that the target gives to a token drafted below a child."""
    below = node.tree.tokens[list(node.tree.topology.children[child])]
    return float(node.target_probs[child, below].max()) if len(below) else 0.0


class WithoutWeight(Block):
    """Block verification draws its final token from (p - q)+ and not from (w p - q)+, w the prefix's weight.

    With one drafted token the two are the same. vllm-ascend (issues 7807, 7808, 7839) resampled wrongly.
    """

    def verify(self, tree, target_probs, draft_probs, generator):
        verdict = super().verify(tree, target_probs, draft_probs, generator)
        if verdict.num_emitted == tree.topology.num_levels:
            return verdict
        law = residual(target_probs, draft_probs)[verdict.num_accepted]
        return replace(verdict, tokens=(*verdict.tokens[:-1], draw_one(law, generator)))

    def true_outcomes(self, tree, target_probs, draft_probs):
        right, wrong = self.outcomes(tree, target_probs, draft_probs), residual(target_probs, draft_probs)
        return replace(right, final=torch.cat((wrong[:-1], right.final[-1:])))


def residual(target_probs, draft_probs):
    """The law (N, V) of the final token at every node that has a child."""
    return normalise((target_probs - draft_probs).clamp_min(0), target_probs)


class NullMassDropped(Standard):
    """From the leaves up, a node whose children have failed is never rejected: its residual is renormalised.

    Top-down, and at the root, the residual is a law in any case, so only trees of three levels show it.
    """

    def law(self, *given):
        law = super().law(*given)
        return Law(law.select, normalise(law.residual, law.residual))


DEEP = {"vocab": 4, "topology": chain(4)}
FAULTS = [
    Fault("acceptance times 1.15 from depth 3", more_often, Where.LAW, 0.0060, **DEEP),
    Fault("coin used again two levels below", CoinAgain, Where.VERIFY, 0.0793, vocab=4, topology=chain(3)),
    Fault("levels forget what they passed on, from depth 3", LevelsForget, Where.LAW, 0.0936, **DEEP),
    Fault("no residual from depth 4", no_residual, Where.VERIFY, 0.0507, vocab=3, topology=chain(5)),
    Fault("best subtree among equal siblings", BestSubtree, Where.VERIFY, 0.0444, **FORKED),
    Fault(
        "block without the prefix's weight", WithoutWeight, Where.VERIFY, 0.0210, vocab=30, topology=chain(2)
    ),
    Fault(
        "traversal that rejects no inner node",
        lambda: Traversal(NullMassDropped()),
        Where.LAW,
        0.1443,
        **FORKED,
    ),
]
