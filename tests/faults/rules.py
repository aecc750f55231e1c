"""Wrong rules: a sibling's test, the law after a rejection, what only several siblings show."""

import torch

from resispec.distributions import normalise
from resispec.draws import WithoutReplacement
from resispec.trees import chain, complete
from resispec.verifiers import Draws, Law, Standard
from resispec.verifiers.base import is_first
from tests.faults.parts import Sequential, argmax, only_top, ruling

STANDARD = Standard()
DISTINCT = Draws.WITHOUT_REPLACEMENT


def accepting(name, total_variation, chance, **options):
    """A fault of the chance (..., 1) that a `sibling` is accepted."""
    return ruling(name, total_variation, Sequential(chance).law, **options)


def leaving(name, total_variation, left, **options):
    """A fault of the law (..., V) that is left of the target when a `sibling` was refused."""
    return ruling(name, total_variation, Sequential(left=left).law, **options)


# Wrong tests of a sibling


def rounded_draft(sibling):
    """The draft's mass in the ratio is rounded to bfloat16; siblings come from the precise law.

    DeepSpec (issues 31 and 48) had it the other way round. Both differ by a thousandth.
    """
    rounded = sibling.q.to(torch.bfloat16).clamp_min(torch.finfo(torch.bfloat16).tiny)
    return (sibling.p / rounded.to(sibling.q.dtype)).clamp_max(1)


def top_p_target(sibling):
    """The target is cut to top-p .9 in the test, not in the residual: a warper on one side."""
    masses, order = sibling.target.sort(-1, descending=True)
    kept = torch.where(masses.cumsum(-1) - masses < 0.9, masses, 0.0)
    cut = normalise(torch.zeros_like(kept).scatter(-1, order, kept), sibling.target)
    return (cut.gather(-1, sibling.token) / sibling.q).clamp_max(1)


def typical(sibling):
    """Medusa (arXiv 2401.10774) by default: p over min(.3, .09 exp(-H)), H the target's entropy."""
    entropy = torch.special.entr(sibling.target).sum(-1, keepdim=True)
    return (sibling.p > (0.09 * (-entropy).exp()).clamp_max(0.3)).to(sibling.p.dtype)


def more_often(factor):
    """Acceptance is tuned only in vocabularies of more than 5 tokens: small tests stay green."""
    return lambda s: ((factor if s.target.shape[-1] > 5 else 1.0) * s.p / s.q).clamp_max(1)


# Wrong laws of the token after a rejection


def where_little(least, law):
    """A law in place of the residual where a rejection leaves less of the target than this."""
    return lambda s: law(s).where(s.excess.sum(-1, keepdim=True) < least, s.left)


def not_renormalised(target_probs, *given):
    """The residual is not divided by its mass before the next sibling is tested against it."""
    law = Sequential(left=lambda s: s.excess).law(target_probs, *given)
    return Law(law.select, normalise(law.residual, target_probs))


def cut_to(count):
    """The standard rule with a last residual of `count` tokens, as in engines that sort a top-k."""

    def law(*given):
        law = STANDARD.law(*given)
        return Law(law.select, only_top(law.residual, count))

    return law


# What only several siblings show


def copies_retested(target_probs, draft_probs, siblings, draws):
    """A token that was drafted twice is tested twice with one cached ratio p / q.

    After its first rejection the residual gives the token nothing, so a copy must never pass.
    """
    law = STANDARD.law(target_probs, draft_probs, siblings, draws)
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


def draft_not_renormalised(target_probs, draft_probs, siblings, draws):
    """Without replacement, the draft loses the tokens that were drawn but is not renormalised."""
    told = MassLost() if draws == DISTINCT else draws
    return STANDARD.law(target_probs, draft_probs, siblings, told)


def last_always_accepted(*given):
    """The last sibling is accepted without a test, since something has to be emitted."""
    law = STANDARD.law(*given)
    before = law.select[..., :-1]
    return Law(
        torch.cat((before, (1 - before.sum(-1, keepdim=True)).clamp_min(0)), -1), law.residual
    )


def sorted_by_target(target_probs, draft_probs, siblings, draws):
    """Siblings are sorted by the target's mass before they are tested, the likeliest first.

    What is tested first is then no fresh draw from q. Sampled siblings may not be ranked.
    """
    order = target_probs.gather(-1, siblings).argsort(dim=-1, descending=True, stable=True)
    law = STANDARD.law(target_probs, draft_probs, siblings.gather(-1, order), draws)
    return Law(torch.zeros_like(law.select).scatter(-1, order, law.select), law.residual)


PRUNED = Sequential(
    lambda s: torch.where(s.q < 0.05, 0.0, s.chance),
    lambda s: torch.where(s.q < 0.05, s.target, s.left),
)
FAULTS = [
    accepting("draft in bfloat16 in the ratio only", 0.0001, rounded_draft),
    # For numerical safety, so that no sibling is ever sure to pass.
    accepting("acceptance clamped at .99", 0.0031, lambda s: s.chance.clamp_max(0.99)),
    # The coin is one of 0, .01, ..., 1, and a sibling passes when it is at most p / q. OpenVINO
    # GenAI's sampler draws such coins (read in a development state of 2026.4.0).
    accepting(
        "acceptance by a coin of 101 values", 0.0081, lambda s: ((100 * s.chance).floor() + 1) / 101
    ),
    # Token 0 is the end of the sequence, so that no step ends early.
    accepting(
        "end of sequence never accepted", 0.0816, lambda s: torch.where(s.token == 0, 0.0, s.chance)
    ),
    # Against division by zero. The smaller the masses, the more is rejected.
    accepting(
        "acceptance with q + .01",
        0.0627,
        lambda s: (s.p / (s.q + 1e-2)).clamp_max(1),
        vocab=50,
        topology=complete(2, 2),
    ),
    # A token passes if and only if the target likes it at least as much as the draft. In vLLM
    # (issue 13196) a seed was without effect and every ratio capped to 0 or 1; a user noticed.
    accepting("acceptance rounded to 0 or 1", 0.1953, lambda s: s.chance.floor()),
    # Tested twice, once by the drafter's side.
    accepting("acceptance squared", 0.1025, lambda s: s.chance.square()),
    accepting("acceptance times 1.02 (V > 5)", 0.0035, more_often(1.02)),
    accepting(
        "acceptance times 1.05 (V > 5)", 0.0115, more_often(1.05), vocab=50, topology=complete(2, 2)
    ),
    accepting("top-p on the target in the test only", 0.0680, top_p_target),
    # Every sibling is tested against the target itself, from which is drawn when none passes; it
    # was never meant to be exact.
    ruling("typical acceptance", 0.3787, Sequential(typical, lambda s: s.target).law),
    # In place of (p - q)+: the clamp was forgotten and the signs were mended.
    leaving("residual |p - q|", 0.2527, lambda s: normalise((s.target - s.draft).abs(), s.target)),
    # So that nothing small divides.
    leaving(
        "argmax of a residual below .02",
        0.0040,
        where_little(0.02, lambda s: argmax(s.left)),
        noise=0.03,
    ),
    # Never updated again. EAGLE had a stale residual (issue 50, mended in pull request 47);
    # accuracy dropped at T > 0 and not at T = 0.
    leaving(
        "residual of the first rejection reused",
        0.0686,
        lambda s: s.left if s.rank == 0 else s.target,
    ),
    ruling("residual not renormalised between siblings", 0.0711, not_renormalised),
    # Laws that differ by more never get there.
    leaving(
        "target itself where less than .001 is left",
        0.0002,
        where_little(1e-3, lambda s: s.target),
        noise=1e-3,
    ),
    # OpenVINO GenAI's sampler (read in a development state of 2026.4.0) draws no residual either.
    leaving("no residual: the target itself", 0.2521, lambda s: s.target),
    # What is cut off is spread over tokens that no smaller vocabulary has.
    ruling("residual cut to its top 100", 0.1003, cut_to(100), vocab=800, topology=chain(1)),
    ruling("residual cut to its top 1,000", 0.0482, cut_to(1000), vocab=4000, topology=chain(1)),
    ruling("copies of a token tested again", 0.0813, copies_retested),
    ruling(
        "draft not renormalised without replacement", 0.0560, draft_not_renormalised, draws=DISTINCT
    ),
    ruling("last sibling always accepted", 0.2599, last_always_accepted),
    ruling("siblings sorted by the target", 0.3328, sorted_by_target),
    # Those of a draft mass below .05 are pruned, to save positions. What stays is no draw from q
    # any more, but is tested as one. Sampled siblings may not be pruned by score.
    ruling("unlikely siblings pruned after the draw", 0.0903, PRUNED.law),
    # The fourth is accepted without a test, by an index that ends too early.
    accepting(
        "wrong from the fourth sibling on",
        0.2315,
        lambda s: s.chance if s.rank < 3 else torch.ones_like(s.p),
        topology=complete(2, 4),
    ),
]
