"""A rule under supervision: what it is given and returns is checked, and errors say who, where and what."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.audit.laws import check_rows, finite_and_positive, first_row, where
from resispec.distributions import sum_tolerance
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws, Law, SiblingRule, check_shapes

RETURNED = 1e-4
"""How far the sums of what a rule returns may be from their values: it may have computed them in float32."""


@dataclass(frozen=True)
class CheckedRule:
    """Wraps a rule for audits (it synchronises with the host; decode with the rule itself).

    name: how messages call the rule. whole: the target's rows are laws; False also allows a mass below 1, as
    trees verified from the leaves up give, and then the residual's mass may be below 1.
    """

    rule: SiblingRule
    name: str
    whole: bool = True

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`.

        Raises InvalidInput, naming the rule, the row of the batch and the quantity, when p or q is no law, a
        sibling is no token, or the rule returns wrong shapes, negative, infinite or NaN masses or sums other
        than 1, or changes what it was given.
        """
        given = (target_probs, draft_probs, siblings)
        try:
            self._check_given(*given)
            copies = [tensor.clone(memory_format=torch.contiguous_format) for tensor in given]
            law = self.rule.law(copies[0], copies[1], copies[2], draws)
            for quantity, copy, tensor in zip(
                ("target_probs", "draft_probs", "siblings"), copies, given, strict=True
            ):
                if not torch.equal(copy, tensor):
                    row = first_row((copy != tensor).any(-1))
                    raise InvalidInput(f"{where(row)}the rule changed its input {quantity} in place")
            self._check_returned(law, target_probs, siblings)
        except InvalidInput as error:
            raise InvalidInput(f"rule {self.name!r}: {error}") from error
        return law

    def _check_given(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor) -> None:
        shapes = tuple(target_probs.shape), tuple(draft_probs.shape), tuple(siblings.shape)
        if shapes[0] != shapes[1] or shapes[0][:-1] != shapes[2][:-1]:
            raise InvalidInput(f"inputs of shapes {shapes}; allowed: (..., V), (..., V) and (..., B)")
        if self.whole:
            check_rows("target probabilities", target_probs)
        else:
            _check_mass("target probabilities", target_probs, sum_tolerance(target_probs))
        check_rows("draft probabilities", draft_probs)
        outside = (siblings < 0) | (siblings >= shapes[0][-1])
        if bool(outside.any()):
            row = first_row(outside)
            raise InvalidInput(
                f"{where(row[:-1])}sibling {int(siblings[row])}; allowed: tokens below {shapes[0][-1]}"
            )

    def _check_returned(self, law: Law, target_probs: Tensor, siblings: Tensor) -> None:
        check_shapes(law, target_probs, siblings)
        _check_mass("entries of select", law.select, RETURNED)
        _check_mass("entries of residual", law.residual, RETURNED)
        # Where a sibling is selected for certain there is no residual to speak of.
        needed = (1 - law.select.sum(-1) > RETURNED).expand(target_probs.shape[:-1])
        if self.whole and bool(needed.any()):
            short = needed & ((law.residual.sum(-1, dtype=torch.float64) - 1).abs() > RETURNED)
            if bool(short.any()):
                row = first_row(short)
                total = float(law.residual[row].sum(dtype=torch.float64))
                raise InvalidInput(
                    f"{where(row)}entries of residual sum to {total:.9g}; allowed: 1 within {RETURNED:g}"
                )


def _check_mass(name: str, rows: Tensor, tolerance: float) -> None:
    """Raise InvalidInput unless every row (..., K) is finite, not negative and sums to at most 1."""
    finite_and_positive(name, rows)
    total = rows.sum(-1, dtype=torch.float64)
    if bool((total > 1 + tolerance).any()):
        row = first_row(total > 1 + tolerance)
        raise InvalidInput(
            f"{where(row)}{name} sum to {float(total[row]):.9g}; allowed: at most 1 within {tolerance:g}"
        )
