"""Siblings that were drawn in another way than the rule is told: `laws` says q, again and again."""

import torch

from faults.parts import drawing, only_top, tempered, top
from resispec.draws import Iid, PointMass, WithoutReplacement


class ToldAsIid(Iid):
    """Draws of another kind that are told as independent ones from q."""

    are_independent = False
    real = WithoutReplacement()

    def draw(self, *given):
        return self.real.draw(*given)

    def weights(self, *given):
        return self.real.weights(*given)


class FromAnotherLaw(Iid):
    """Independent draws from `law(q)`, told as draws from q."""

    def law(self, draft_probs):
        raise NotImplementedError

    def draw(self, draft_probs, *given):
        return super().draw(self.law(draft_probs), *given)

    def weights(self, draft_probs, siblings):
        return self.law(draft_probs).gather(-1, siblings).prod(-1)


class ArgmaxToldAsSampled(ToldAsIid):
    """The likeliest tokens are drafted, and the rule is told that they were drawn from q.

    transformers issue 47932 (pull request 47961): a candidate generator drafts by argmax and returns logits
    as q. In transformers 5.23.0 one path of it was still there. With p = (.5, .5), q = (.6, .4) it emits
    (.833, .167).
    """

    are_distinct = True
    real = PointMass()


class Bfloat16Logits(FromAnotherLaw):
    """Siblings are drawn from logits in bfloat16, and the ratio uses the draft's law in full precision.

    DeepSpec (issues 31 and 48) differed by a thousandth.
    """

    def law(self, draft_probs):
        return torch.softmax(draft_probs.log().to(torch.bfloat16).to(draft_probs.dtype), -1)


class DistinctToldAsIndependent(ToldAsIid):
    """Siblings are drawn without replacement, and the rule is told that they are independent draws."""


class SharperThanTold(FromAnotherLaw):
    """Siblings are drawn at the temperature .7, and the rule is told the draft's law at T = 1."""

    def law(self, draft_probs):
        return tempered(draft_probs, 0.7)


class SiblingsShareNoise(Iid):
    """All siblings of a node are drawn with one random number, so that they are copies of one token."""

    are_independent = False

    def draw(self, draft_probs, count, generator):
        one = super().draw(draft_probs, 1, generator)
        return one.expand(*one.shape[:-1], count)

    def weights(self, draft_probs, siblings):
        first = siblings[..., :1]
        return draft_probs.gather(-1, first)[..., 0] * (siblings == first).all(-1)


class TopKNotRenormalised(FromAnotherLaw):
    """Siblings are drawn from the draft's 3 likeliest tokens, whose masses are told without renormalising."""

    def law(self, draft_probs):
        return only_top(draft_probs, 3)

    def laws(self, draft_probs, siblings):
        return super().laws(top(draft_probs, 3), siblings)


FAULTS = [
    drawing("argmax told as sampled", 0.2530, ArgmaxToldAsSampled()),
    drawing("draft drawn from bfloat16 logits", 0.0007, Bfloat16Logits()),
    drawing("distinct siblings told as independent", 0.0560, DistinctToldAsIndependent()),
    drawing("draft drawn at T = .7, told T = 1", 0.0669, SharperThanTold()),
    drawing("siblings drawn with one random number", 0.0627, SiblingsShareNoise()),
    drawing("draft's top-k not renormalised", 0.0617, TopKNotRenormalised()),
]
