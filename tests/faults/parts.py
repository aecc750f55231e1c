"""The description of a planted fault, and the exact parts that faults change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import normalise
from resispec.drafters import Drafter, DraftModel
from resispec.trees import Topology, complete
from resispec.verifiers import Draws, Law, Outcomes, SiblingRule, Standard, TopDown, Verifier


class Where(StrEnum):
    """Place of a fault, which decides what can see it.

    LAW: in what `law` or `outcomes` says. VERIFY: only in what `verify` draws; `outcomes` is right. DRAFTER:
    siblings are drawn in another way than the rule is told. LOOP: in randomness or memory across steps, so
    that a single call of `verify` looks right.
    """

    LAW = "law"
    VERIFY = "verify"
    DRAFTER = "drafter"
    LOOP = "loop"


@dataclass(frozen=True)
class Fault:
    """One planted fault, or an innocent case, which looks like a fault and has none.

    make: a new sibling rule or verifier; a new one for every sequence, since some remember. A verifier whose
    `verify` does not draw what its `outcomes` says, and whose real law is known, has `true_outcomes`.
    total_variation: the bias, 0 for an innocent case, on the laws over `vocab` tokens and the tree of
    `faults.truth`; checked by enumeration, or, for faults of the loop, measured once by simulating 20,000
    prompts (standard error .005). draws: how the siblings are really drawn; where the drafter lies, an object
    whose `draw` and `weights` are what is done and whose `laws` are what the rule is told. noise: how far the
    draft's laws are from the target's.
    """

    name: str
    make: Callable[[], SiblingRule | Verifier]
    where: Where
    total_variation: float
    draws: Draws = Draws.IID
    vocab: int = 6
    topology: Topology = complete(2, 3)
    noise: float = 1.5

    @property
    def is_biased(self) -> bool:
        """Whether anything is wrong at all."""
        return self.total_variation > 0

    @property
    def told(self) -> Draws:
        """The known kind of draws that the rule is told."""
        return Draws(self.draws.value)

    def drafter(self, topology: Topology) -> Drafter:
        """The drafter with which the fault shows in real decoding."""
        return DraftModel(topology, self.draws)


# The standard rule in parts


@dataclass(frozen=True)
class Sibling:
    """One sibling that is tested.

    target, draft: (..., V), the law that it is tested against and the one that it was drawn from. token:
    (..., 1) int64. rank: how many siblings came before.
    """

    target: Tensor
    draft: Tensor
    token: Tensor
    rank: int

    @property
    def p(self) -> Tensor:
        """The token's mass (..., 1) under the target."""
        return self.target.gather(-1, self.token)

    @property
    def q(self) -> Tensor:
        """The token's mass (..., 1) under the draft, never 0."""
        return self.draft.gather(-1, self.token).clamp_min(torch.finfo(self.draft.dtype).tiny)

    @property
    def chance(self) -> Tensor:
        """The right probability (..., 1) of acceptance."""
        return (self.p / self.q).clamp_max(1)

    @property
    def excess(self) -> Tensor:
        """(p - q)+, (..., V)."""
        return (self.target - self.draft).clamp_min(0)

    @property
    def left(self) -> Tensor:
        """The right law (..., V) from which the walk continues after a rejection."""
        return normalise(self.excess, self.target)


@dataclass(frozen=True)
class Sequential:
    """Tests one sibling after another: the standard rule, but for the part that a fault gives."""

    chance: Callable[[Sibling], Tensor] = lambda sibling: sibling.chance
    left: Callable[[Sibling], Tensor] = lambda sibling: sibling.left

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`."""
        target, alive, select = target_probs, torch.ones_like(target_probs[..., :1]), []
        tests = zip(draws.laws(draft_probs, siblings), siblings.split(1, -1), strict=True)
        for rank, (draft, token) in enumerate(tests):
            sibling = Sibling(target, draft, token, rank)
            chance = self.chance(sibling)
            select.append(alive * chance)
            alive, target = alive * (1 - chance), self.left(sibling)
        return Law(torch.cat(select, -1), target)


# A right verifier with wrong laws


@dataclass(frozen=True, kw_only=True)
class WrongInputs(TopDown):
    """`verify` works with the laws `wrong(tree, p, q)` in place of p and q; `outcomes` says what is right."""

    rule: SiblingRule = field(default_factory=Standard)
    wrong: Callable[[Tree, Tensor, Tensor], tuple[Tensor, Tensor]]

    def verify(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator) -> Verdict:
        """See `Verifier.verify`."""
        return super().verify(tree, *self.wrong(tree, target_probs, draft_probs), generator)

    def true_outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` has."""
        return super().outcomes(tree, *self.wrong(tree, target_probs, draft_probs))


# Mistakes in laws


def tempered(law: Tensor, temperature: float) -> Tensor:
    """A law (..., V) at another temperature."""
    return normalise(law ** (1 / temperature), law)


def top(law: Tensor, count: int) -> Tensor:
    """The `count` largest masses of a law (..., V)."""
    largest = law.topk(min(count, law.shape[-1]), -1)
    return law.new_zeros(law.shape).scatter(-1, largest.indices, largest.values)


def only_top(law: Tensor, count: int) -> Tensor:
    """The renormalised `top` (..., V)."""
    return normalise(top(law, count), law)


def argmax(law: Tensor) -> Tensor:
    """The point mass (..., V) on the likeliest token."""
    return only_top(law, 1)


# Faults that are a function


def accepting(name, total_variation, chance, **options):
    """A fault of the chance (..., 1) that a `Sibling` is accepted."""
    return Fault(name, lambda: Sequential(chance), Where.LAW, total_variation, **options)


def leaving(name, total_variation, left, **options):
    """A fault of the law (..., V) that is left of the target when a `Sibling` was refused."""
    return Fault(name, lambda: Sequential(left=left), Where.LAW, total_variation, **options)


def taking(name, total_variation, wrong, **options):
    """A fault of the laws (N, V) that `verify` takes for p and q: `wrong(tree, p, q)`."""
    return Fault(name, lambda: WrongInputs(wrong=wrong), Where.VERIFY, total_variation, **options)


def drawing(name, total_variation, draws):
    """A fault of the drafter, whose siblings are drawn by `draws`."""
    return Fault(name, Standard, Where.DRAFTER, total_variation, draws)
