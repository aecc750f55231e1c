"""Block verification draws its final token from (p - q)+ and not from (w p - q)+, w the weight of the prefix.

With one drafted token the two are the same. vllm-ascend (issues 7807, 7808, 7839) resampled wrongly.
"""

from dataclasses import replace

import torch

from faults.base import Fault, Where
from resispec.distributions import draw_one, normalise
from resispec.trees import chain
from resispec.verifiers import Block


class WithoutWeight(Block):
    """See `Block`."""

    def verify(self, tree, target_probs, draft_probs, generator):
        """See `Verifier.verify`."""
        verdict = super().verify(tree, target_probs, draft_probs, generator)
        if verdict.num_emitted == tree.topology.num_levels:
            return verdict
        law = residual(target_probs, draft_probs)[verdict.num_accepted]
        return replace(verdict, tokens=(*verdict.tokens[:-1], draw_one(law, generator)))

    def true_outcomes(self, tree, target_probs, draft_probs):
        """The law that `verify` has."""
        right, wrong = self.outcomes(tree, target_probs, draft_probs), residual(target_probs, draft_probs)
        return replace(right, final=torch.cat((wrong[:-1], right.final[-1:])))


def residual(target_probs, draft_probs):
    """The law (N, V) of the final token at every node that has a child."""
    return normalise((target_probs - draft_probs).clamp_min(0), target_probs)


FAULT = Fault(
    "block without the prefix's weight", WithoutWeight, Where.VERIFY, 0.0210, vocab=30, topology=chain(2)
)
