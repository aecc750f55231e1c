"""A rule whose inputs and results are checked: errors say which rule, where and what."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.audit.row_checks import RETURNED, check_rows, first_row, where
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws, Law, SiblingRule, check_shapes


@dataclass(frozen=True)
class CheckedRule:
    """Wraps a rule for audits (it synchronises with the host; decode with the rule itself).

    name: how messages call the rule.
    """

    rule: SiblingRule
    name: str

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`.

        Raises InvalidInput, naming the rule, the row of the batch and the quantity, when p or q is no law, a
        sibling is no token, or the rule returns wrong shapes, negative, infinite or NaN masses or sums other
        than 1, or changes what it was given.
        """
        try:
            return self._law(target_probs, draft_probs, siblings, draws)
        except InvalidInput as error:
            raise InvalidInput(f"rule {self.name!r}: {error}") from error

    def _law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        inputs = (target_probs, draft_probs, siblings)
        shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        if shapes[0] != shapes[1] or shapes[0][:-1] != shapes[2][:-1]:
            raise InvalidInput(f"inputs of shapes {shapes}; allowed: (..., V), (..., V) and (..., B)")
        check_rows("target probabilities", target_probs)
        check_rows("draft probabilities", draft_probs)
        outside = (siblings < 0) | (siblings >= shapes[0][-1])
        if bool(outside.any()):
            row = first_row(outside)
            raise InvalidInput(
                f"{where(row[:-1])}sibling {int(siblings[row])}; allowed: tokens below {shapes[0][-1]}"
            )
        p, q, tokens = (tensor.clone(memory_format=torch.contiguous_format) for tensor in inputs)
        law = self.rule.law(p, q, tokens, draws)
        for name, copy, tensor in zip(
            ("target_probs", "draft_probs", "siblings"), (p, q, tokens), inputs, strict=True
        ):
            if not torch.equal(copy, tensor):
                row = first_row((copy != tensor).any(-1))
                raise InvalidInput(f"{where(row)}the rule changed its input {name} in place")
        check_shapes(law, target_probs, siblings)
        check_rows("entries of select", law.select, RETURNED, is_whole=False)
        # Where a sibling is selected for certain there is no residual to speak of.
        check_rows("entries of residual", law.residual, RETURNED, 1 - law.select.sum(-1) > RETURNED)
        return law
