"""Exact cases that look as if something were wrong."""

from dataclasses import dataclass, field

import torch
from torch import Generator

from resispec.verifiers import Law, Naive, SiblingRule
from tests.faults.drafting import FromAnotherLaw, drawing, from_bfloat16_logits, sharper
from tests.faults.parts import FORKED, Fault, Rule, Walk, Where, remembering, ruling
from tests.faults.rules import STANDARD


def first_sibling_only(target_probs, draft_probs, siblings, draws):
    """Only the first sibling is tested, others are ignored: exact, with fewer accepted tokens."""
    law = STANDARD.law(target_probs, draft_probs, siblings[..., :1], draws)
    ignored = torch.zeros_like(siblings[..., 1:], dtype=law.select.dtype)
    return Law(torch.cat((law.select, ignored), -1), law.residual)


def in_float32(target_probs, draft_probs, siblings, draws):
    """The standard rule in float32 for float64 laws: sums are off by some 1e-8, as in engines."""
    law = STANDARD.law(target_probs.float(), draft_probs.float(), siblings, draws)
    return Law(law.select.to(target_probs.dtype), law.residual.to(target_probs.dtype))


def in_reverse_order(target_probs, draft_probs, siblings, draws):
    """Independent siblings are tested in reverse order: any order fixed beforehand is exact."""
    law = STANDARD.law(target_probs, draft_probs, siblings.flip(-1), draws)
    return Law(law.select.flip(-1), law.residual)


def split_among_copies(target_probs, draft_probs, siblings, draws):
    """The naive rule, whose mass for a token drafted several times is split among its copies."""
    copies = (siblings[..., :, None] == siblings[..., None, :]).sum(-1)
    law = Naive().law(target_probs, draft_probs, siblings, draws)
    return Law(target_probs.gather(-1, siblings) / copies, law.residual)


class LastCopyUntold(Walk):
    """Of siblings with equal tokens the walk goes on at the last one, not at the first."""

    def child(self, node, index, token):  # noqa: ARG002 - the contract's
        equal = [child for child in node.children if node.tree.tokens[child] == token]
        return equal[-1] if equal else None


class LastCopy(LastCopyUntold):
    """The subtrees play no part in that choice, so each of them is as good."""

    outcomes = Walk.true_outcomes


@dataclass(frozen=True)
class StopsAtResidual(Walk):
    """A residual token that equals a sibling ends the walk: the same law, fewer tokens a step.

    Of this rule the residual often holds a drafted token; that of the standard rule holds none.
    """

    rule: SiblingRule = field(default_factory=lambda: Rule(first_sibling_only))

    def child(self, node, index, token):  # noqa: ARG002 - the contract's
        return None if index is None else node.children[index]

    outcomes = Walk.true_outcomes


def own_generator(memory, verify, *given):
    """The verifier decides with its own generator, seeded once from the one that it is given."""
    *rest, generator = given
    if not memory:
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        memory["own"] = Generator(generator.device).manual_seed(seed)
    return verify(*rest, memory["own"])


FAULTS = [
    drawing(
        "draft drawn and told from bfloat16 logits",
        0.0,
        FromAnotherLaw(from_bfloat16_logits, from_bfloat16_logits),
    ),
    ruling("only the first sibling tested", 0.0, first_sibling_only),
    ruling("rule in float32", 0.0, in_float32),
    Fault("goes on at the last of equal siblings", LastCopy, Where.VERIFY, 0.0, **FORKED),
    # `outcomes` says the first of equal siblings: no token is wrong, so an inconsistency and no
    # bias.
    Fault(
        "last of equal siblings, the first in outcomes", LastCopyUntold, Where.VERIFY, 0.0, **FORKED
    ),
    remembering("verifier with a generator of its own", 0.0, own_generator),
    ruling("independent siblings in reverse order", 0.0, in_reverse_order),
    drawing("draft drawn and told at T = .7", 0.0, FromAnotherLaw(sharper, sharper)),
    ruling("mass split among equal siblings", 0.0, split_among_copies),
    Fault("residual token does not go on", StopsAtResidual, Where.VERIFY, 0.0, **FORKED),
]
