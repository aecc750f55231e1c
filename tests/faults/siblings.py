"""Faults that only several siblings show."""

import torch

from faults.parts import Fault, Sequential, Where, accepting
from resispec.draws import WithoutReplacement
from resispec.trees import complete
from resispec.verifiers import Draws, Law, Standard
from resispec.verifiers.base import is_first


class CopiesRetested(Standard):
    """A token that was drafted twice is tested twice with the same ratio p / q, by a cache of ratios.

    After its first rejection the residual gives the token nothing, so a copy must never pass.
    """

    def law(self, target_probs, draft_probs, siblings, draws):
        law = super().law(target_probs, draft_probs, siblings, draws)
        ratio = (target_probs.gather(-1, siblings) / draft_probs.gather(-1, siblings)).clamp_max(1)
        before = (1 - law.select.cumsum(-1) + law.select).clamp_min(1e-30)
        chance = torch.where(is_first(siblings), law.select / before, ratio).clamp_max(1)
        alive = torch.cat((torch.ones_like(chance[..., :1]), 1 - chance[..., :-1]), -1).cumprod(-1)
        return Law(alive * chance, law.residual)


class MassLost(WithoutReplacement):
    """The laws as the faulty rule has them; how siblings are drawn plays no part here."""

    def laws(self, draft_probs, siblings):
        yield draft_probs
        for token in siblings.split(1, -1)[:-1]:
            draft_probs = draft_probs.scatter(-1, token, 0.0)
            yield draft_probs


class DraftNotRenormalised(Standard):
    """Without replacement, the draft loses the tokens that were drawn but is not renormalised."""

    def law(self, target_probs, draft_probs, siblings, draws):
        told = MassLost() if draws == Draws.WITHOUT_REPLACEMENT else draws
        return super().law(target_probs, draft_probs, siblings, told)


class LastAlwaysAccepted(Standard):
    """The last sibling is accepted without a test, since something has to be emitted."""

    def law(self, *given):
        law = super().law(*given)
        before = law.select[..., :-1]
        return Law(torch.cat((before, (1 - before.sum(-1, keepdim=True)).clamp_min(0)), -1), law.residual)


class SortedByTarget(Standard):
    """Siblings are sorted by the target's mass before they are tested, so that the likeliest comes first.

    What is tested first is then no fresh draw from q. Sampled siblings may not be ranked.
    """

    def law(self, target_probs, draft_probs, siblings, draws):
        order = target_probs.gather(-1, siblings).argsort(dim=-1, descending=True, stable=True)
        law = super().law(target_probs, draft_probs, siblings.gather(-1, order), draws)
        return Law(torch.zeros_like(law.select).scatter(-1, order, law.select), law.residual)


FAULTS = [
    Fault("copies of a token tested again", CopiesRetested, Where.LAW, 0.0813),
    Fault(
        "draft not renormalised without replacement",
        DraftNotRenormalised,
        Where.LAW,
        0.0560,
        draws=Draws.WITHOUT_REPLACEMENT,
    ),
    Fault("last sibling always accepted", LastAlwaysAccepted, Where.LAW, 0.2599),
    Fault("siblings sorted by the target", SortedByTarget, Where.LAW, 0.3328),
    # Those of a draft mass below .05 are pruned, to save positions. What stays is no draw from q any more,
    # but is tested as one. Sampled siblings may not be pruned by score.
    Fault(
        "unlikely siblings pruned after the draw",
        lambda: Sequential(
            lambda s: torch.where(s.q < 0.05, 0.0, s.chance),
            lambda s: torch.where(s.q < 0.05, s.target, s.left),
        ),
        Where.LAW,
        0.0903,
    ),
    # The fourth is accepted without a test, by an index that ends too early.
    accepting(
        "wrong from the fourth sibling on",
        0.2315,
        lambda s: s.chance if s.rank < 3 else torch.ones_like(s.p),
        topology=complete(2, 4),
    ),
]
