"""SpecHub (arXiv 2411.05289): the rule for pairs of the draft's likeliest token and another one.

From the paper's abstract and its authors' code (github.com/MasterGodzilla/Speculative_decoding_OT,
commit 7d592b7). Its acceptance is P(a) + sum min(p, r) outside of a, the same as `greedy`'s with
two siblings.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.draws import Hub
from resispec.verifiers.base import Draws, DrawsKind, Law, require_draws
from resispec.verifiers.greedy import Greedy


@dataclass(frozen=True)
class SpecHub:
    """Accepts the other token x with chance min(1, p(x) / r(x)), else hub a or one of (p - r)+.

    The rule has no registered name, since audits of registered rules ask for more siblings.

    r is q without a, which is the law of x in any pair. So this is the rule for greedy draws of two
    siblings; the order of a pair carries no further information.
    """

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`. Raises InvalidInput unless the draws are `Hub`."""
        require_draws("spec_hub", draws, Hub())
        hub = draft_probs.argmax(-1, keepdim=True)
        if siblings.shape[-1] == 1:  # a single draw from q
            return Greedy().law(target_probs, draft_probs, siblings, Draws.GREEDY)
        is_swapped = siblings[..., 1:] == hub
        pair = torch.where(is_swapped, siblings.flip(-1), siblings)
        law = Greedy().law(target_probs, draft_probs, pair, Draws.GREEDY)
        return Law(torch.where(is_swapped, law.select.flip(-1), law.select), law.residual)
