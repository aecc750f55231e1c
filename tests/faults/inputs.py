"""Verifiers that are right but given wrong laws, and what laws are turned into by mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Generator, Tensor

from resispec.core import Tree, Verdict
from resispec.distributions import normalise
from resispec.verifiers import Outcomes, SiblingRule, Standard, TopDown


@dataclass(frozen=True)
class WrongInputs(TopDown):
    """`verify` works with wrong laws; `outcomes` says what is right."""

    rule: SiblingRule = field(default_factory=Standard)

    def wrong(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> tuple[Tensor, Tensor]:
        """What is taken for the target's and the draft's laws, both (N, V)."""
        raise NotImplementedError

    def verify(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator) -> Verdict:
        """See `Verifier.verify`."""
        return super().verify(tree, *self.wrong(tree, target_probs, draft_probs), generator)

    def true_outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` has."""
        return super().outcomes(tree, *self.wrong(tree, target_probs, draft_probs))


@dataclass(frozen=True, kw_only=True)
class WrongBonus(WrongInputs):
    """The bonus token, behind a leaf, is drawn from another law; nothing else depends on the leaves' laws.

    change: of the leaves' laws (K, V).
    """

    change: Callable[[Tensor], Tensor]

    def wrong(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> tuple[Tensor, Tensor]:
        """See `WrongInputs.wrong`."""
        leaves = [node for node, children in enumerate(tree.topology.children) if not children]
        target = target_probs.clone()
        target[leaves] = self.change(target_probs[leaves])
        return target, draft_probs


def tempered(law: Tensor, temperature: float) -> Tensor:
    """A law (..., V) at another temperature."""
    return normalise(law ** (1 / temperature), law)


def only_top(law: Tensor, count: int) -> Tensor:
    """The `count` largest masses of a law (..., V), renormalised."""
    return normalise(top(law, count), law)


def top(law: Tensor, count: int) -> Tensor:
    """The same without renormalising."""
    largest = law.topk(min(count, law.shape[-1]), -1)
    return law.new_zeros(law.shape).scatter(-1, largest.indices, largest.values)


def argmax(law: Tensor) -> Tensor:
    """The point mass (..., V) on the likeliest token."""
    return only_top(law, 1)
