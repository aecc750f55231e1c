"""The contracts of verification: a rule is a conditional law at one node, a verifier walks a tree with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Generator, Tensor

from resispec.core import Draws, Tree, Verdict
from resispec.errors import InvalidInput

__all__ = ["Draws", "Law", "Outcomes", "SiblingRule", "Verifier", "is_first", "require_draws"]


@dataclass(frozen=True)
class Law:
    """What happens at one node, given its drafted siblings.

    select: (..., B) probability that sibling i is the emitted token through acceptance.
    residual: (..., V) law of the emitted token given that no sibling was selected.
    With a target of mass a < 1 (trees verified from the leaves up) the residual sums to less than 1, and what is missing is the
    probability that this node itself is rejected, given that no sibling was selected.
    """

    select: Tensor
    residual: Tensor


@dataclass(frozen=True)
class Outcomes:
    """The whole law of one verified tree.

    stop: (N,) probability that node n is the last accepted one (0: the root, so nothing was accepted).
    final: (N, V) law of the final token given that the walk stops at node n.
    """

    stop: Tensor
    final: Tensor


class SiblingRule(Protocol):
    """A multi-candidate acceptance rule at one node."""

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """The conditional law of what is emitted, given the siblings.

        target_probs, draft_probs: (..., V) float32 or float64; siblings: (..., B) int64 in draw order.
        A pure tensor function: batched, no host synchronisation, no branch on data.
        Raises InvalidInput for draws that the rule is not defined for.
        """


class Verifier(Protocol):
    """Decides what is kept of a tree."""

    def verify(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator) -> Verdict:
        """Draw an outcome. target_probs, draft_probs: (N, V)."""

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from, given the drafted tokens."""


def require_draws(name: str, draws: Draws, supported: tuple[Draws, ...]) -> None:
    """Raise InvalidInput unless the rule `name` is defined for these draws."""
    if draws not in supported:
        raise InvalidInput(
            f"{name} is not exact for draws {draws.value!r}; supported: {', '.join(supported)}"
        )


def is_first(siblings: Tensor) -> Tensor:
    """Whether no earlier sibling holds the same token: (..., B) bool for siblings (..., B)."""
    return ~(siblings[..., :, None] == siblings[..., None, :]).tril(-1).any(-1)
