"""The standard rule in float32 for laws in float64: sums are off by some 1e-8, as in every engine."""

from faults.base import Fault, Where
from resispec.verifiers import Law, Standard


class Float32(Standard):
    """See `Standard`."""

    def law(self, target_probs, draft_probs, siblings, draws):
        """See `SiblingRule.law`."""
        law = super().law(target_probs.float(), draft_probs.float(), siblings, draws)
        return Law(law.select.to(target_probs.dtype), law.residual.to(target_probs.dtype))


FAULT = Fault("rule in float32", Float32, Where.LAW, 0.0)
