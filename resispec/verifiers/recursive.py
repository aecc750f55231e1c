"""Algorithm 1 of the paper: siblings are tested in turn, and every rejection leaves a residual.

`Standard` and `ResiSpec` differ only in how they reshape that residual (the algorithm's underlined
step). The kinds of draws differ only in how the draft's law changes from one sibling to the next,
see `DrawsKind.laws`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from resispec.distributions import null_mass, quotient
from resispec.timing import part
from resispec.verifiers.base import DrawsKind, Law, check_tensor, rule_name


class Recursive:
    """Accepts sibling i with chance min(1, p_i(x_i) / q_i(x_i)), else reshapes p_i into p_{i+1}.

    The law is computed in closed form, without coins: the chance to select sibling i is the product
    of the chances to reject all siblings before i and to accept i. A target of mass a < 1 is a law
    over V tokens and a null outcome of mass 1 - a that no draft proposes.

    A subclass says how the residual is reshaped; this and the normalisation to p_{i+1} are the part
    "shaping" of a profile. A subclass may set `is_bounded` when `reshape` leaves no token more than
    the target gives it, and nothing to the rejected token. Then p_i <= a p / (1 - a), since the
    product of all normalising divisors is never less than 1 - a, and the promise of `lookahead`
    holds.
    """

    def reshape(self, target: Tensor, draft: Tensor, rejected: Tensor) -> Tensor:
        """The unnormalised residual (..., V) after the token `rejected` (..., 1) int64 was refused.

        target: (..., V), the law that the token was tested against. draft: (..., V), the law that
        it was drawn from. `law` raises InvalidInput for a residual of another shape or precision
        than the target's.
        """
        raise NotImplementedError

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`; defined for every kind of draws."""
        *select, residual = self.in_turn(target_probs, draft_probs, siblings, draws)
        return Law(torch.cat(select, -1), residual)

    def in_turn(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Iterator[Tensor]:
        """The law in pieces: a chance (..., 1) to select each sibling, then the residual (..., V).

        Pieces that the caller does not ask for are not computed.
        """
        target, null = target_probs, None
        tiny = torch.finfo(target_probs.dtype).tiny
        rest: Tensor | None = None
        places = range(siblings.shape[-1])
        for index, draft in zip(places, draws.laws(draft_probs, siblings), strict=True):
            token = siblings[..., index : index + 1]
            accept = quotient(target.gather(-1, token), draft.gather(-1, token)).clamp_max(1)
            chance = accept if rest is None else rest * accept
            yield chance
            rest = 1 - chance if rest is None else rest - chance
            if null is None:
                null = null_mass(target)
            with part("shaping"):
                mass = self.reshape(target, draft, token)
                check_tensor(
                    f"{rule_name(self)}: `reshape` returns", mass, target.shape, target.dtype
                )
                with part("proxy"):
                    total = mass.sum(-1, keepdim=True) + null
                    # A rejection of probability zero leaves nothing to reshape: the earlier law
                    # stays.
                    divisor = total.clamp_min(tiny)
                    target = torch.where(total <= tiny, target, mass / divisor)  # NaN stays NaN
                    null = null / divisor
        yield target
