"""Exact cases that look as if something were wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Generator

from faults.drafting import Bfloat16Logits, SharperThanTold
from faults.parts import Fault, Where, drawing
from faults.walk import Walk
from resispec.trees import chain, from_child_counts
from resispec.verifiers import Law, Naive, SiblingRule, Standard, TopDown

FORKED = {"vocab": 3, "topology": from_child_counts([[2], [1, 1]])}


class Bfloat16AndTold(Bfloat16Logits):
    """The draft is rounded to bfloat16 before siblings are drawn, and the ratio uses the same rounded law."""

    def laws(self, draft_probs, siblings):
        return super().laws(self.law(draft_probs), siblings)


class FirstSiblingOnly(Standard):
    """Only the first sibling is tested, the others are ignored: exact, with fewer accepted tokens."""

    def law(self, target_probs, draft_probs, siblings, draws):
        law = super().law(target_probs, draft_probs, siblings[..., :1], draws)
        ignored = torch.zeros_like(siblings[..., 1:], dtype=law.select.dtype)
        return Law(torch.cat((law.select, ignored), -1), law.residual)


class Float32(Standard):
    """The standard rule in float32 for laws in float64: sums are off by some 1e-8, as in every engine."""

    def law(self, target_probs, draft_probs, siblings, draws):
        law = super().law(target_probs.float(), draft_probs.float(), siblings, draws)
        return Law(law.select.to(target_probs.dtype), law.residual.to(target_probs.dtype))


class LastCopyUntold(Walk):
    """Of siblings with equal tokens the walk goes on at the last one, not at the first."""

    def child(self, node, index, token):  # noqa: ARG002 - the contract's
        equal = [child for child in node.children if node.tree.tokens[child] == token]
        return equal[-1] if equal else None


class LastCopy(LastCopyUntold):
    """The subtrees play no part in that choice, so each of them is as good."""

    outcomes = Walk.true_outcomes


@dataclass(frozen=True)
class OwnGenerator(TopDown):
    """The verifier decides with a generator of its own, seeded once from the one that it is given."""

    rule: SiblingRule = field(default_factory=Standard)
    own: list[Generator] = field(default_factory=list)

    def verify(self, tree, target_probs, draft_probs, generator):
        if not self.own:
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            self.own.append(Generator(generator.device).manual_seed(seed))
        return super().verify(tree, target_probs, draft_probs, self.own[0])


class ReverseOrder(Standard):
    """Independent siblings are tested from the last to the first: any order fixed beforehand is exact."""

    def law(self, target_probs, draft_probs, siblings, draws):
        law = super().law(target_probs, draft_probs, siblings.flip(-1), draws)
        return Law(law.select.flip(-1), law.residual)


class SharperAndTold(SharperThanTold):
    """Siblings are drawn at the temperature .7, and the rule is told so: any draft is fine if it is told."""

    def laws(self, draft_probs, siblings):
        return super().laws(self.law(draft_probs), siblings)


class SplitAmongCopies(Naive):
    """The naive rule, whose mass for a token that was drafted several times is split among its copies."""

    def law(self, target_probs, draft_probs, siblings, draws):
        copies = (siblings[..., :, None] == siblings[..., None, :]).sum(-1)
        law = super().law(target_probs, draft_probs, siblings, draws)
        return Law(target_probs.gather(-1, siblings) / copies, law.residual)


@dataclass(frozen=True)
class StopsAtResidual(Walk):
    """A residual token that equals a drafted sibling ends the walk: the same law with fewer tokens a step.

    Of this rule the residual often holds a drafted token; that of the standard rule holds none.
    """

    rule: SiblingRule = field(default_factory=FirstSiblingOnly)

    def child(self, node, index, token):  # noqa: ARG002 - the contract's
        return None if index is None else node.children[index]

    outcomes = Walk.true_outcomes


FAULTS = [
    drawing("draft drawn and told from bfloat16 logits", 0.0, Bfloat16AndTold()),
    Fault("only the first sibling tested", FirstSiblingOnly, Where.LAW, 0.0),
    Fault("rule in float32", Float32, Where.LAW, 0.0),
    Fault("goes on at the last of equal siblings", LastCopy, Where.VERIFY, 0.0, **FORKED),
    # `outcomes` says the first of equal siblings: no token is wrong, so an inconsistency and no bias.
    Fault("last of equal siblings, the first in outcomes", LastCopyUntold, Where.VERIFY, 0.0, **FORKED),
    Fault("verifier with a generator of its own", OwnGenerator, Where.LOOP, 0.0, vocab=3, topology=chain(1)),
    Fault("independent siblings in reverse order", ReverseOrder, Where.LAW, 0.0),
    drawing("draft drawn and told at T = .7", 0.0, SharperAndTold()),
    Fault("mass split among equal siblings", SplitAmongCopies, Where.LAW, 0.0),
    Fault("residual token does not go on", StopsAtResidual, Where.VERIFY, 0.0, **FORKED),
]
