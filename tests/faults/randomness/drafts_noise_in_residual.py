"""The Gumbel noise with which a token was drafted is used again to draw from the residual.

vLLM issues 47386 and 54282: found by a chi-square on 16 tokens; a test with a wide vocabulary had passed.
As a race: E is exponential noise, the token of the least E / q is drafted, that of the least E / r with the
same E is emitted. `verify` draws E anew, given the drafted token.
"""

import torch

from faults.base import Fault, Where
from faults.walk import Walk
from resispec.distributions import choose
from resispec.trees import chain
from resispec.verifiers import Law


class DraftsNoise(Walk):
    """For independent siblings: the noise of the last one, to whose token the residual gives nothing."""

    def draw(self, node, generator):
        """See `Walk.draw`."""
        index = choose(node.law.select, generator)
        if index < len(node.children):
            return index, node.siblings[index]
        uniform = torch.rand(1 + len(node.law.residual), generator=generator, dtype=torch.float64)
        times = -torch.log1p(-uniform)
        race = node.draft_probs[node.place] * times[0] + times[1:]  # the drafted token is first at times[0]
        return None, int((race / node.law.residual).argmin())

    def drawn(self, node):
        """See `Walk.drawn`.

        The residual emits y with probability r_y times the integral of 1 / A(k)^2 from q_y / r_y on, where
        A(k) = sum of max(q_v, r_v k). A is linear between the places q_v / r_v.
        """
        q, r = node.draft_probs[node.place], node.law.residual
        order = (q / r).argsort()[: int((r > 0).sum())]
        sums = torch.maximum(q, r * (q / r)[order, None]).sum(-1)
        parts = (1 / sums - torch.cat((1 / sums[1:], sums.new_zeros(1)))) / r[order].cumsum(0)
        integrals = torch.zeros_like(r)
        integrals[order] = parts.flip(0).cumsum(0).flip(0)
        return Law(node.law.select, r * integrals)


FAULT = Fault("draft's noise in the residual draw", DraftsNoise, Where.VERIFY, 0.0355, topology=chain(1))
