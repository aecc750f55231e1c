"""Wrong laws of the token after a rejection."""

from __future__ import annotations

from dataclasses import dataclass

from faults.parts import Fault, Sequential, Where, argmax, leaving, only_top
from resispec.distributions import normalise
from resispec.trees import chain
from resispec.verifiers import Law, Standard


class NotRenormalised(Sequential):
    """Only the law of the final draw is a law."""

    def law(self, target_probs, *given):
        law = super().law(target_probs, *given)
        return Law(law.select, normalise(law.residual, target_probs))


@dataclass(frozen=True)
class CutResidual(Standard):
    """The standard rule, whose last residual keeps `count` tokens, as engines do that sort for a top-k."""

    count: int

    def law(self, *given):
        law = super().law(*given)
        return Law(law.select, only_top(law.residual, self.count))


def where_little(least, law):
    """A law in place of the residual where a rejection leaves less of the target than this."""
    return lambda s: law(s).where(s.excess.sum(-1, keepdim=True) < least, s.left)


def cut(name, count, total_variation, vocab):
    """A residual cut short; what is lost is spread over tokens that no vocabulary of up to `count` has."""
    return Fault(name, lambda: CutResidual(count), Where.LAW, total_variation, vocab=vocab, topology=chain(1))


FAULTS = [
    # In place of (p - q)+: the clamp was forgotten and the signs were mended.
    leaving("residual |p - q|", 0.2527, lambda s: normalise((s.target - s.draft).abs(), s.target)),
    # So that nothing small divides.
    leaving(
        "argmax of a residual below .02", 0.0040, where_little(0.02, lambda s: argmax(s.left)), noise=0.03
    ),
    # Never updated again. EAGLE had a stale residual (issue 50, mended in pull request 47); accuracy dropped
    # at T > 0 and not at T = 0.
    leaving("residual of the first rejection reused", 0.0686, lambda s: s.left if s.rank == 0 else s.target),
    # It is not divided by its mass before the next sibling is tested against it.
    Fault(
        "residual not renormalised between siblings",
        lambda: NotRenormalised(left=lambda s: s.excess),
        Where.LAW,
        0.0711,
    ),
    # Laws that differ by more never get there.
    leaving(
        "target itself where less than .001 is left",
        0.0002,
        where_little(1e-3, lambda s: s.target),
        noise=1e-3,
    ),
    # OpenVINO GenAI's sampler (read in a development state of 2026.4.0) draws no residual either.
    leaving("no residual: the target itself", 0.2521, lambda s: s.target),
    cut("residual cut to its top 100", 100, 0.1003, vocab=800),
    cut("residual cut to its top 1,000", 1000, 0.0482, vocab=4000),
]
