"""The contracts of verification: a rule gives a law at one node, a verifier decides a tree."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Protocol

import torch
from torch import Generator, Tensor

from resispec.core import Draws as Draws  # a part of the contract, as the next
from resispec.core import DrawsKind as DrawsKind
from resispec.core import Tree, Verdict
from resispec.errors import InvalidInput, NotDefined


@dataclass(frozen=True)
class Law:
    """The law of one node's emitted token, given its drafted siblings.

    select: (..., B) probability that sibling i is the emitted token through acceptance.
    residual: (..., V) law of the emitted token given that no sibling was selected.

    With a target of mass a < 1 (trees verified from the leaves up) the residual sums to less than
    1; the missing mass is the probability that this node itself is rejected, given that no sibling
    was selected.
    """

    select: Tensor
    residual: Tensor


@dataclass(frozen=True)
class Outcomes:
    """The law of the verdict on one drafted tree.

    stop: (N,) probability that node n is the last accepted node (0: the root, so nothing was
    accepted). final: (N, V) law of the final token given that the walk stops at node n.
    """

    stop: Tensor
    final: Tensor


class SiblingRule(Protocol):
    """A multi-candidate acceptance rule at one node."""

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """The conditional law of the emitted token, given the siblings.

        target_probs, draft_probs: (..., V) float32 or float64; siblings: (..., B) int64 in draw
        order.
        A pure tensor function: batched, no host synchronisation, no branch on data.
        Raises NotDefined for draws, or so many siblings, that the rule is not defined for.
        """


class Verifier(Protocol):
    """A verifier decides which nodes of a tree are accepted, and draws the final token."""

    def verify(
        self, tree: Tree, target_probs: Tensor, draft_probs: Tensor, generator: Generator
    ) -> Verdict:
        """Draw a verdict. target_probs, draft_probs: (N, V)."""

    def outcomes(self, tree: Tree, target_probs: Tensor, draft_probs: Tensor) -> Outcomes:
        """The law that `verify` draws from, given the drafted tokens."""


def interface_of(subject: object) -> type | None:
    """The contract a subject is used by: `SiblingRule` (it has a `law`), `Verifier`, or None.

    A class may inherit one of them and define the other, such as a rule's subclass with its own
    `verify`. Then the more specific one counts: the one that is defined nearer, in the order in
    which Python looks methods up. Raises InvalidInput, naming the class, where both are equally
    near.
    """
    law = distance(subject, "law")
    verifier = min(distance(subject, "verify"), distance(subject, "outcomes"))
    if law < verifier:
        return SiblingRule
    if verifier < law:
        return Verifier
    if law < math.inf:
        raise InvalidInput(
            f"{type(subject).__name__} defines both `law` (a sibling rule) and `verify` or "
            "`outcomes` (a tree verifier); allowed: one of the two"
        )
    return None


def distance(subject: object, name: str) -> float:
    """Steps up from a subject's class to its attribute, contracts aside; infinite for nowhere."""
    if name in getattr(subject, "__dict__", {}):
        return 0
    classes = [kind for kind in type(subject).__mro__ if kind not in (SiblingRule, Verifier)]
    for place, kind in enumerate(classes):
        if name in vars(kind):
            return place
    is_delegated = hasattr(subject, name) and not hasattr(type(subject), name)  # by `__getattr__`
    return len(classes) if is_delegated else math.inf


def require_outcomes(verifier: Verifier) -> None:
    """Raise InvalidInput, naming the verifier, if it has no `outcomes`."""
    if distance(verifier, "outcomes") == math.inf:
        raise InvalidInput(
            f"{type(verifier).__name__} has a `verify` but no `outcomes`, the law that `verify` "
            "draws from; allowed here: a tree verifier with both, or a sibling rule"
        )


def outcomes_of(
    verifier: Verifier, tree: Tree, target_probs: Tensor, draft_probs: Tensor
) -> Outcomes:
    """The verifier's outcomes, see `Verifier.outcomes`; raises as `require_outcomes`."""
    require_outcomes(verifier)
    return verifier.outcomes(tree, target_probs, draft_probs)


def law_of(
    rule: SiblingRule, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
) -> Law:
    """The rule's law, see `SiblingRule.law`, checked by `check_shapes`; messages name the rule."""
    law = rule.law(target_probs, draft_probs, siblings, draws)
    check_shapes(law, target_probs, siblings, f"{rule_name(rule)}: ")
    return law


def rule_name(rule: SiblingRule) -> str:
    """The name of a rule in messages."""
    return f"rule {type(rule).__name__}"


def verifier_name(verifier: Verifier) -> str:
    """The name of a verifier in messages, or of the rule that it applies."""
    return f"verifier {type(getattr(verifier, 'rule', verifier)).__name__}"


def check_shapes(law: Law, target_probs: Tensor, siblings: Tensor, whose: str = "") -> None:
    """Raise InvalidInput unless `select` is (..., B), `residual` (..., V), of the target's dtype.

    The check reads no value, so it costs no host synchronisation. whose: the beginning of the
    message.
    """
    for quantity, like in (("select", siblings), ("residual", target_probs)):
        check_tensor(
            f"{whose}{quantity} is", getattr(law, quantity, None), like.shape, target_probs.dtype
        )


def check_tensor(claim: str, value: object, shape: torch.Size, dtype: torch.dtype) -> None:
    """Raise InvalidInput unless the value is a tensor of this shape and precision.

    claim: the beginning of the message, like "residual is".
    """
    if isinstance(value, Tensor) and value.shape == shape and value.dtype == dtype:
        return
    form = (
        f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
    )
    raise InvalidInput(f"{claim} {form}; allowed: a tensor {tuple(shape)} {dtype}")


def check_unchanged(who: str, kept: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise InvalidInput, naming the row, if a tensor is not what its copy was kept as.

    who: the beginning of the message, like "the rule". kept: copies by name; given: the tensors of
    these names. NaN that was NaN is unchanged. This waits for the device.
    """
    for name, copy in kept.items():
        changed = (given[name] != copy) & (copy == copy)
        if bool(changed.any()):
            row = changed.any(-1).nonzero()[0].tolist()
            raise InvalidInput(f"{named(row)}{who} changed its input {name} in place")


def check_verdict(verifier: Verifier, verdict: Verdict, tree: Tree, vocab_size: int) -> None:
    """Raise InvalidInput, naming the verifier, unless a verdict is one on this tree.

    Every node of its path is a child of the one before; its tokens are those of the path, then one
    of the vocabulary. All are numbers of the host, as others equal no end of a sequence.
    """
    name, path, tokens = verifier_name(verifier), list(verdict.path), list(verdict.tokens)
    if not all(isinstance(number, Integral) for number in (*path, *tokens)):
        raise InvalidInput(f"{name} returned {verdict}; allowed: whole numbers of the host")
    parent = 0
    for node in path:
        if node not in tree.topology.children[parent]:
            raise InvalidInput(
                f"{name} accepted the nodes {verdict.path}; allowed: a path of the tree, and "
                f"{node!r} is no child of {parent}"
            )
        parent = node
    accepted = tree.tokens[path].tolist()
    if not tokens or tokens[:-1] != accepted or not 0 <= tokens[-1] < vocab_size:
        raise InvalidInput(
            f"{name} emitted {verdict.tokens} for the nodes {verdict.path}; allowed: their tokens "
            f"{accepted}, then one token from 0 to {vocab_size - 1}"
        )


@contextmanager
def unchanging(
    verifier: Verifier, tree: Tree, target_probs: Tensor, draft_probs: Tensor
) -> Iterator[None]:
    """A context that raises InvalidInput if the verifier has changed its inputs in place.

    It is for audits, since it copies them and waits for the device.
    """
    given = {"tokens": tree.tokens, "target_probs": target_probs, "draft_probs": draft_probs}
    kept = {name: tensor.clone() for name, tensor in given.items()}
    yield
    check_unchanged(verifier_name(verifier), kept, given)


def named(row: list[int]) -> str:
    """The prefix `row 3: ` or `row (1, 2): ` of a message; empty for the row [] of a single law."""
    return f"row {row[0] if len(row) == 1 else tuple(row)}: " if row else ""


@contextmanager
def naming(law: str, node: int) -> Iterator[None]:
    """A context that adds a law's name and node to a FloatingPointError about an invalid law."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(f"{law}, node {node}: {error}") from error


def require_draws(name: str, draws: DrawsKind, supported: DrawsKind) -> None:
    """Raise NotDefined unless the draws are those that the rule `name` is defined for."""
    if draws.name != supported.name:  # who takes over a name says that the law is the same
        raise NotDefined(f"{name} is not exact for draws {draws.name!r}; supported: {supported}")


def reads_numbers(verifier: Verifier | SiblingRule) -> bool:
    """Whether the host reads numbers to compute the verifier's law, so no device can capture it.

    The verifier or its rule declares this by `reads_numbers = True`.
    """
    return getattr(getattr(verifier, "rule", verifier), "reads_numbers", False)


def is_first(siblings: Tensor) -> Tensor:
    """Whether no earlier sibling holds the same token: (..., B) bool for siblings (..., B)."""
    return ~(siblings.unsqueeze(-1) == siblings.unsqueeze(-2)).tril(-1).any(-1)
