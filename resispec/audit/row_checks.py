"""Helpers of audits: the law of the token that a `Law` emits, and checks of rows and of rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from resispec.audit.as_sibling_rule import rule_of
from resispec.distributions import sum_tolerance
from resispec.errors import InvalidInput, NotDefined
from resispec.verifiers.base import (
    DrawsKind,
    Law,
    SiblingRule,
    Verifier,
    check_shapes,
    check_unchanged,
    distance,
    is_first,
    named,
)

RETURNED = 1e-4
"""Allowed distance from 1 of sums of returned masses, which may have been computed in float32."""


def verifies_otherwise(verifier: Verifier) -> bool:
    """Whether a class has a `verify` of its own and inherits `outcomes`, which are of another."""
    return distance(verifier, "verify") < distance(verifier, "outcomes") < math.inf


def check_own_outcomes(verifier: Verifier) -> None:
    """Raise InvalidInput if `outcomes` are not the law that a verifier's `verify` draws from."""
    if verifies_otherwise(verifier):
        raise InvalidInput(
            f"{type(verifier).__name__} has a `verify` of its own and inherits `outcomes`, which "
            "say another law; allowed here: both in one class"
        )


def check_draws(draws: DrawsKind) -> None:
    """Raise InvalidInput, on one small law, for draws that change it or do not follow their claims.

    The claim is `can_be_cut`: the first two of three siblings follow the law of two. Draws that
    are not defined on five tokens, or fail there, are not tried.
    """
    try:
        with torch.device("cpu"):  # whatever default device a program has set
            _check_draws(draws)
    except NotDefined:
        return
    except InvalidInput:
        raise
    except Exception:  # noqa: BLE001 - a user's code may raise anything
        return


def _check_draws(draws: DrawsKind) -> None:
    generator = Generator().manual_seed(0)
    count = min(3, draws.most_siblings)
    law = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05])
    rows = law.expand(64, -1).contiguous()
    siblings = draws.draw(rows, count, generator)
    for _ in draws.laws(rows, siblings):
        pass
    check_unchanged(f"draws {draws}", {"draft_probs": law.expand_as(rows)}, {"draft_probs": rows})
    if not draws.can_be_cut or count < 3:
        return
    tokens = torch.arange(len(law))
    pairs, triples = (torch.cartesian_prod(*[tokens] * number) for number in (2, 3))
    fewer, more = (
        draws.weights(law.expand(len(every), -1), every).double() for every in (pairs, triples)
    )
    if not torch.allclose(more.view(len(pairs), -1).sum(-1), fewer, atol=1e-5):
        raise InvalidInput(
            f"draws {draws} say can_be_cut = True, but the first two of three siblings do not "
            "follow the law of two; allowed: False, and then trees whose levels have nodes with "
            "equal numbers of children"
        )


def emitted(law: Law, siblings: Tensor) -> Tensor:
    """The emitted law (..., V) given siblings (..., B): select + (1 - sum select) residual."""
    rest = 1 - law.select.sum(-1, keepdim=True)
    return (rest * law.residual).scatter_add(-1, siblings, law.select)


def accepted(law: Law, siblings: Tensor) -> Tensor:
    """Chance (...) that the emitted token is among the siblings (..., B), selected or residual."""
    rest = 1 - law.select.sum(-1)
    masses = torch.where(is_first(siblings), law.residual.gather(-1, siblings), 0.0)
    return law.select.sum(-1) + rest * masses.sum(-1)


def check_rows(
    name: str, rows: Tensor, tolerance: float | None = None, is_whole: Tensor | bool = True
) -> None:
    """Raise InvalidInput, naming the first bad row, unless every row (..., V) is a probability law.

    tolerance: how far a sum may be from 1; by default that of `sum_tolerance`. is_whole: (...)
    bool, False for rows that may sum to less than 1.
    """
    tolerance = sum_tolerance(rows) if tolerance is None else tolerance
    bad = ~((rows >= 0) & (rows < torch.inf))
    if bool(bad.any()):
        *row, entry = bad.nonzero()[0].tolist()
        raise InvalidInput(
            f"{named(row)}{name} hold {float(rows[(*row, entry)]):.6g} at entry {entry}; "
            "allowed: finite values, not negative"
        )
    total = rows.sum(-1, dtype=torch.float64)
    short = (total < 1 - tolerance) & is_whole
    bad = short | (total > 1 + tolerance)
    if bool(bad.any()):
        row = bad.nonzero()[0].tolist()
        at_most = "" if is_whole is True or short[tuple(row)] else "at most "
        raise InvalidInput(
            f"{named(row)}{name} sum to {float(total[tuple(row)]):.9g}; "
            f"allowed: {at_most}1 within {tolerance:g}"
        )


def check_pair(target_probs: Tensor, draft_probs: Tensor) -> None:
    """Raise InvalidInput unless p and q are probability laws (V,) of the same V."""
    if target_probs.ndim != 1:
        raise InvalidInput(
            f"target probabilities have the shape {tuple(target_probs.shape)}; allowed: (V,)"
        )
    check_like("draft probabilities", draft_probs, target_probs.shape)
    check_rows("target probabilities", target_probs)
    check_rows("draft probabilities", draft_probs)


def check_like(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    """Raise InvalidInput unless a tensor has this shape."""
    if tuple(tensor.shape) != tuple(shape):
        raise InvalidInput(f"{name} have the shape {tuple(tensor.shape)}; allowed: {tuple(shape)}")


def check_stops(stop: Tensor, name: str = "chances to stop") -> None:
    """Raise FloatingPointError unless the chances to stop (..., N) are a law, but for rounding.

    name: what the message calls the rows.
    """
    totals, least = stop.sum(-1, dtype=torch.float64), stop.amin(-1)
    is_law = ((totals - 1).abs() <= RETURNED) & (least >= -RETURNED)  # False for NaN
    if not bool(is_law.all()):
        place = int(is_law.int().argmin())
        raise FloatingPointError(
            f"the {name} in a verified tree sum to {float(totals.view(-1)[place]):.9g}, "
            f"the least is {float(least.view(-1)[place]):.6g}; allowed: a sum of 1 within "
            f"{RETURNED:g}, no negative entries"
        )


@dataclass(frozen=True)
class CheckedRule:
    """A rule that is checked, for audits.

    Checks synchronise with the host, so decoding takes the rule itself. name: the rule's name in
    messages.
    """

    rule: SiblingRule
    name: str

    @classmethod
    def of(cls, verifier: Verifier) -> CheckedRule:
        """The checked rule of a verifier, see `rule_of`, under the name of its class.

        Raises InvalidInput as `check_own_outcomes`.
        """
        check_own_outcomes(verifier)
        return cls(rule_of(verifier), type(getattr(verifier, "rule", verifier)).__name__)

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`.

        Raises InvalidInput, naming the rule, the row of the batch and the quantity, when the rule
        returns wrong shapes, negative, infinite or NaN masses or sums other than 1, or changes its
        inputs.
        """
        inputs = {"target_probs": target_probs, "draft_probs": draft_probs, "siblings": siblings}
        p, q, tokens = (
            tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs.values()
        )
        try:
            law = self.rule.law(p, q, tokens, draws)
            check_unchanged("the rule", inputs, dict(zip(inputs, (p, q, tokens), strict=True)))
            check_shapes(law, target_probs, siblings)
            check_rows("entries of select", law.select, RETURNED, is_whole=False)
            # If a sibling is selected for certain, the residual does not matter.
            check_rows(
                "entries of residual", law.residual, RETURNED, 1 - law.select.sum(-1) > RETURNED
            )
        except InvalidInput as error:
            # A rule that is not defined here stays so.
            raise type(error)(f"rule {self.name!r}: {error}") from error
        return law
