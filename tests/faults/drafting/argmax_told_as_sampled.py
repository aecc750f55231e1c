"""The likeliest tokens are drafted, and the rule is told that they were drawn from q.

transformers issue 47932 (pull request 47961): a candidate generator drafts by argmax and returns logits as q.
In transformers 5.23.0 one path of it was still there. With p = (.5, .5), q = (.6, .4) it emits (.833, .167).
"""

from faults.base import Fault, Where
from resispec.draws import Iid, PointMass
from resispec.verifiers import Standard


class ArgmaxToldAsSampled(Iid):
    """`laws` says q."""

    are_independent = False
    are_distinct = True

    def draw(self, *given):
        """See `Draws.draw`."""
        return PointMass().draw(*given)

    def weights(self, *given):
        """See `Draws.weights`."""
        return PointMass().weights(*given)


FAULT = Fault("argmax told as sampled", Standard, Where.DRAFTER, 0.2530, draws=ArgmaxToldAsSampled())
