"""Faults that only deeper trees show."""

from dataclasses import replace

import torch

from faults.parts import Fault, Where
from faults.walk import Walk
from resispec.distributions import draw_one, normalise
from resispec.trees import chain, from_child_counts
from resispec.verifiers import Block, Law, Standard, Traversal

FORKED = {"vocab": 3, "topology": from_child_counts([[2], [1, 1]])}


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


def never_rejected():
    """From the leaves up, a node whose children have failed is never rejected: its residual is renormalised.

    Top-down, and at the root, the residual is a law in any case, so only trees of three levels show it.
    """

    class NullMassDropped(Standard):
        def law(self, *given):
            law = super().law(*given)
            return Law(law.select, normalise(law.residual, law.residual))

    return Traversal(NullMassDropped())


FAULTS = [
    Fault("best subtree among equal siblings", BestSubtree, Where.VERIFY, 0.0444, **FORKED),
    Fault(
        "block without the prefix's weight", WithoutWeight, Where.VERIFY, 0.0210, vocab=30, topology=chain(2)
    ),
    Fault("traversal that rejects no inner node", never_rejected, Where.LAW, 0.1443, **FORKED),
]
