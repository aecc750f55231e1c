"""Wrong tests of a sibling."""

import torch

from faults.parts import Fault, Sequential, Where, accepting
from resispec.distributions import normalise
from resispec.trees import complete


def rounded_draft(sibling):
    """The draft's mass is rounded to bfloat16 in the ratio, while siblings are drawn from the precise law.

    DeepSpec (issues 31 and 48) had it the other way round. Both differ by a thousandth.
    """
    rounded = sibling.q.to(torch.bfloat16).clamp_min(torch.finfo(torch.bfloat16).tiny)
    return (sibling.p / rounded.to(sibling.q.dtype)).clamp_max(1)


def top_p_target(sibling):
    """The target is cut to top-p .9 in the test of a sibling, not in the residual: a warper on one side."""
    masses, order = sibling.target.sort(-1, descending=True)
    kept = torch.where(masses.cumsum(-1) - masses < 0.9, masses, 0.0)
    cut = normalise(torch.zeros_like(kept).scatter(-1, order, kept), sibling.target)
    return (cut.gather(-1, sibling.token) / sibling.q).clamp_max(1)


def typical(sibling):
    """Medusa (arXiv 2401.10774), with its defaults: p above min(.3, .09 exp(-H)), H the target's entropy."""
    entropy = torch.special.entr(sibling.target).sum(-1, keepdim=True)
    return (sibling.p > (0.09 * (-entropy).exp()).clamp_max(0.3)).to(sibling.p.dtype)


def more_often(factor):
    """Somebody tuned the acceptance, in vocabularies of more than 5 tokens only: small tests stay green."""
    return lambda s: ((factor if s.target.shape[-1] > 5 else 1.0) * s.p / s.q).clamp_max(1)


FAULTS = [
    accepting("draft in bfloat16 in the ratio only", 0.0001, rounded_draft),
    # For numerical safety, so that no sibling is ever sure to pass.
    accepting("acceptance clamped at .99", 0.0031, lambda s: s.chance.clamp_max(0.99)),
    # The coin is one of 0, .01, ..., 1, and a sibling passes when it is at most p / q. OpenVINO GenAI's
    # sampler draws such coins (read in a development state of 2026.4.0).
    accepting("acceptance by a coin of 101 values", 0.0081, lambda s: ((100 * s.chance).floor() + 1) / 101),
    # Token 0 is the end of the sequence, so that no step ends early.
    accepting("end of sequence never accepted", 0.0816, lambda s: torch.where(s.token == 0, 0.0, s.chance)),
    # Against division by zero. The smaller the masses, the more is rejected.
    accepting(
        "acceptance with q + .01",
        0.0627,
        lambda s: (s.p / (s.q + 1e-2)).clamp_max(1),
        vocab=50,
        topology=complete(2, 2),
    ),
    # A token passes if and only if the target likes it at least as much as the draft. In vLLM (issue 13196) a
    # seed was without effect and every ratio capped to 0 or 1; a user noticed.
    accepting("acceptance rounded to 0 or 1", 0.1953, lambda s: s.chance.floor()),
    # Tested twice, once by the drafter's side.
    accepting("acceptance squared", 0.1025, lambda s: s.chance.square()),
    accepting("acceptance times 1.02 (V > 5)", 0.0035, more_often(1.02)),
    accepting("acceptance times 1.05 (V > 5)", 0.0115, more_often(1.05), vocab=50, topology=complete(2, 2)),
    accepting("top-p on the target in the test only", 0.0680, top_p_target),
    # Every sibling is tested against the target itself, from which is drawn when none passes; it was never
    # meant to be exact.
    Fault("typical acceptance", lambda: Sequential(typical, lambda s: s.target), Where.LAW, 0.3787),
]
