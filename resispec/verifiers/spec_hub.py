"""SpecHub (arXiv 2411.05289): the rule for pairs of the draft's likeliest token and another one.

From the paper's abstract and its authors' code (github.com/MasterGodzilla/Speculative_decoding_OT, commit
7d592b7). It accepts P(a) + sum min(p, r) outside of a, as much as `greedy` with two siblings.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from resispec.draws import Hub
from resispec.verifiers.base import Draws, Law, require_draws
from resispec.verifiers.greedy import Greedy

_HUB = Hub()


@dataclass(frozen=True)
class SpecHub:
    """Accepts the other token x with min(1, p(x) / r(x)); else the hub a or a token of (p - r)+ is emitted.

    Not a registered name, since audits of those ask for more siblings.

    r is q without a, the law of x in any pair, so that is the rule for greedy draws of two siblings; the
    order of a pair says nothing more.
    """

    def law(self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: Draws) -> Law:
        """See `SiblingRule.law`. Raises InvalidInput unless the draws are a hub's."""
        require_draws("spec_hub", draws, _HUB)
        hub = draft_probs.argmax(-1, keepdim=True)
        if siblings.shape[-1] == 1:  # a draw from q alone
            return Greedy().law(target_probs, draft_probs, siblings, Draws.GREEDY)
        is_swapped = siblings[..., 1:] == hub
        pair = torch.where(is_swapped, siblings.flip(-1), siblings)
        law = Greedy().law(target_probs, draft_probs, pair, Draws.GREEDY)
        return Law(torch.where(is_swapped, law.select.flip(-1), law.select), law.residual)
