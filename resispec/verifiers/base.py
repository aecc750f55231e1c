"""The contracts of verification: a rule is a conditional law at one node, a verifier walks a tree with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Generator, Tensor

from resispec.capture import send
from resispec.core import Draws, Tree, Verdict
from resispec.errors import InvalidInput
from resispec.trees import Topology, kept_with_topology

__all__ = [
    "Draws",
    "Law",
    "Outcomes",
    "SiblingRule",
    "Verifier",
    "check_shapes",
    "families_on",
    "is_first",
    "law_of",
    "require_draws",
    "require_rule",
    "rule_name",
    "whose",
]


@dataclass(frozen=True)
class Law:
    """What happens at one node, given its drafted siblings.

    select: (..., B) probability that sibling i is the emitted token through acceptance.
    residual: (..., V) law of the emitted token given that no sibling was selected.
    With a target of mass a < 1 (trees verified from the leaves up) the residual sums to less than 1, and what
    is missing is the probability that this node itself is rejected, given that no sibling was selected.
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


def law_of(
    rule: SiblingRule, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws
) -> Law:
    """The rule's law, see `SiblingRule.law`, checked by `check_shapes`; messages name the rule."""
    law = rule.law(target_probs, draft_probs, siblings, draws)
    try:
        check_shapes(law, target_probs, siblings)
    except InvalidInput as error:
        raise InvalidInput(f"{rule_name(rule)}: {error}") from error
    return law


def rule_name(rule: SiblingRule) -> str:
    """How messages call a rule."""
    return f"rule {type(rule).__name__}"


def check_shapes(law: Law, target_probs: Tensor, siblings: Tensor) -> None:
    """Raise InvalidInput unless `select` is (..., B) and `residual` (..., V), in the target's precision.

    It looks at no value, so it costs no host synchronisation.
    """
    for quantity, like in (("select", siblings), ("residual", target_probs)):
        found = getattr(law, quantity, None)
        if not isinstance(found, Tensor):
            raise InvalidInput(f"{quantity} is {type(found).__name__}; allowed: a tensor {tuple(like.shape)}")
        if found.shape != like.shape or found.dtype != target_probs.dtype:
            raise InvalidInput(
                f"{quantity} is {tuple(found.shape)} {found.dtype}; "
                f"allowed: a tensor {tuple(like.shape)} {target_probs.dtype}"
            )


@contextmanager
def whose(law: str, node: int) -> Iterator[None]:
    """Say in a FloatingPointError, which means that a law is none, whose law it is and at which node."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(f"{law}, node {node}: {error}") from error


class Families(NamedTuple):
    """A topology's `families` and `families_by_level`."""

    all_levels: tuple[tuple[Tensor, Tensor], ...]
    by_level: tuple[tuple[Tensor, Tensor], ...]


@kept_with_topology
def families_on(topology: Topology, device: torch.device) -> Families:
    """The families of a topology, with their tensors on a device."""
    return Families(
        *(
            tuple((send(parents, device), send(children, device)) for parents, children in families)
            for families in (topology.families, topology.families_by_level)
        )
    )


def require_rule(name: str, rule: SiblingRule) -> None:
    """Raise InvalidInput unless `rule`, which the verifier `name` was given, is a sibling rule."""
    if not hasattr(rule, "law"):
        raise InvalidInput(f"{name} takes a sibling rule, which has a `law`; found {type(rule).__name__}")


def require_draws(name: str, draws: Draws, supported: tuple[Draws, ...]) -> None:
    """Raise InvalidInput unless the rule `name` is defined for these draws."""
    if draws not in supported:
        raise InvalidInput(
            f"{name} is not exact for draws {draws.value!r}; supported: {', '.join(supported)}"
        )


def is_first(siblings: Tensor) -> Tensor:
    """Whether no earlier sibling holds the same token: (..., B) bool for siblings (..., B)."""
    return ~(siblings[..., :, None] == siblings[..., None, :]).tril(-1).any(-1)
