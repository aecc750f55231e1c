"""Lenience of Leviathan et al. (arXiv 2211.17192, appendix A.5): q is made smaller before the test.

Biased. The paper has one sibling; several are tested in turn here, as by the standard rule. With
independent draws no token is emitted with more than p / l, which is the paper's promise: the first
sibling gives a token at most min(q, p / l), a rejection leaves at most (p - q)+, and a promise of
p' / l for that remainder adds at most (p - q)+ / l.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from resispec.distributions import quotient
from resispec.errors import InvalidInput
from resispec.verifiers.registry import register
from resispec.verifiers.standard import Standard


@register("lenience")
@dataclass(frozen=True)
class Lenience(Standard):
    """Accepts x ~ q with probability min(1, p(x) / (l q(x))), else goes on from norm((p - q)+).

    factor: l, above 0 and at most 1; with 1 it is the standard rule. The text changes the test of
    Algorithm 1 alone, so its residual stays. Raises InvalidInput for another number.
    """

    factor: float = 0.5
    is_bounded: ClassVar[bool] = False  # it may give a token more than the target does

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise InvalidInput(f"lenience: factor={self.factor}; allowed: above 0, at most 1")

    def accept(self, target: Tensor, draft: Tensor) -> Tensor:
        """See `Recursive.accept`."""
        return quotient(target, self.factor * draft).clamp_max(1)
