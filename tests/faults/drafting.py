"""Siblings that were drawn in another way than the rule is told: `laws` says q, again and again."""

import torch

from resispec.draws import Iid, PointMass, WithoutReplacement
from resispec.verifiers import Standard
from tests.faults.parts import Fault, Where, only_top, tempered, top


def drawing(name, total_variation, draws):
    """A fault of the drafter, whose siblings are drawn by `draws`."""
    return Fault(name, Standard, Where.DRAFTER, total_variation, draws)


class DistinctToldAsIndependent(Iid):
    """Siblings are drawn without replacement, and the rule is told that they are independent."""

    are_independent = False
    real = WithoutReplacement()

    def draw(self, *given):
        return self.real.draw(*given)

    def weights(self, *given):
        return self.real.weights(*given)


class ArgmaxToldAsSampled(DistinctToldAsIndependent):
    """The likeliest tokens are drafted, and the rule is told that they were drawn from q.

    transformers issue 47932 (pull request 47961): a candidate generator drafts by argmax and
    returns logits as q. In transformers 5.23.0 one path of it was still there.
    With p = (.5, .5), q = (.6, .4) it emits (.833, .167).
    """

    are_distinct = True
    real = PointMass()


class SiblingsShareNoise(Iid):
    """All siblings of a node are drawn with one random number, and are copies of one token."""

    are_independent = False

    def draw(self, draft_probs, count, generator):
        one = super().draw(draft_probs, 1, generator)
        return one.expand(*one.shape[:-1], count)

    def weights(self, draft_probs, siblings):
        first = siblings[..., :1]
        return draft_probs.gather(-1, first)[..., 0] * (siblings == first).all(-1)


class FromAnotherLaw(Iid):
    """Independent draws from `law(q)`, told as from `told(q)`; the functions can be pickled."""

    def __init__(self, law, told=None):
        self.law, self.told = law, told

    def draw(self, draft_probs, *given):
        return super().draw(self.law(draft_probs), *given)

    def weights(self, draft_probs, siblings):
        return self.law(draft_probs).gather(-1, siblings).prod(-1)

    def laws(self, draft_probs, siblings):
        return super().laws(self.told(draft_probs) if self.told else draft_probs, siblings)


def from_bfloat16_logits(law):
    """DeepSpec (issues 31 and 48) drew so, with the draft's law in full precision in the ratio."""
    return torch.softmax(law.log().to(torch.bfloat16).to(law.dtype), -1)


def sharper(law):
    return tempered(law, 0.7)


def likeliest_3(law):
    return only_top(law, 3)


def masses_of_likeliest_3(law):
    return top(law, 3)


FAULTS = [
    drawing("argmax told as sampled", 0.2530, ArgmaxToldAsSampled()),
    drawing("draft drawn from bfloat16 logits", 0.0007, FromAnotherLaw(from_bfloat16_logits)),
    drawing("distinct siblings told as independent", 0.0560, DistinctToldAsIndependent()),
    drawing("draft drawn at T = .7, told T = 1", 0.0669, FromAnotherLaw(sharper)),
    drawing("siblings drawn with one random number", 0.0627, SiblingsShareNoise()),
    drawing(
        "draft's top-k not renormalised", 0.0617, FromAnotherLaw(likeliest_3, masses_of_likeliest_3)
    ),
]
