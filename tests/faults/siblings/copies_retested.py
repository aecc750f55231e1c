"""A token that was drafted twice is tested twice with the same ratio p / q, by a cache of ratios per token.

After its first rejection the residual gives the token nothing, so a copy must never pass.
"""

import torch

from faults.base import Fault, Where
from resispec.verifiers import Law, Standard
from resispec.verifiers.base import is_first


class CopiesRetested(Standard):
    """See `Standard`."""

    def law(self, target_probs, draft_probs, siblings, draws):
        """See `SiblingRule.law`."""
        law = super().law(target_probs, draft_probs, siblings, draws)
        ratio = (target_probs.gather(-1, siblings) / draft_probs.gather(-1, siblings)).clamp_max(1)
        before = (1 - law.select.cumsum(-1) + law.select).clamp_min(1e-30)
        chance = torch.where(is_first(siblings), law.select / before, ratio).clamp_max(1)
        alive = torch.cat((torch.ones_like(chance[..., :1]), 1 - chance[..., :-1]), -1).cumprod(-1)
        return Law(alive * chance, law.residual)


FAULT = Fault("copies of a token tested again", CopiesRetested, Where.LAW, 0.0813)
