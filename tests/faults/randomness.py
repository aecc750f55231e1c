"""Random numbers that are used more than once."""

import torch
from torch import Generator

from resispec.distributions import choose, invert
from resispec.trees import chain, complete
from resispec.verifiers import Law
from tests.faults.parts import Fault, Walk, Where, remembering


class DraftsNoise(Walk):
    """The Gumbel noise with which a token was drafted is used again to draw from the residual.

    vLLM issues 47386 and 54282: found by a chi-square on 16 tokens; a test with a wide vocabulary
    had passed. As a race: E is exponential noise, the token of the least E / q is drafted, that of
    the least E / r with the same E is emitted. `verify` draws E anew, given the drafted token. For
    independent siblings it is the noise of the last one, to whose token the residual gives nothing.
    """

    def draw(self, node, generator):
        index = choose(node.law.select, generator)
        if index < len(node.children):
            return index, node.siblings[index]
        uniform = torch.rand(1 + len(node.law.residual), generator=generator, dtype=torch.float64)
        times = -torch.log1p(-uniform)
        # the drafted token is first at times[0]
        race = node.draft_probs[node.place] * times[0] + times[1:]
        return None, int((race / node.law.residual).argmin())

    def drawn(self, node):
        """The residual emits y with chance r_y times the integral of 1 / A(k)^2 from q_y / r_y on.

        A(k) = sum of max(q_v, r_v k) is linear between the places q_v / r_v.
        """
        q, r = node.draft_probs[node.place], node.law.residual
        order = (q / r).argsort()[: int((r > 0).sum())]
        sums = torch.maximum(q, r * (q / r)[order, None]).sum(-1)
        parts = (1 / sums - torch.cat((1 / sums[1:], sums.new_zeros(1)))) / r[order].cumsum(0)
        integrals = torch.zeros_like(r)
        integrals[order] = parts.flip(0).cumsum(0).flip(0)
        return Law(node.law.select, r * integrals)


class UniformShared(Walk):
    """One uniform number decides whether a sibling is accepted and, if none is, the residual token.

    What is left of the number once siblings were refused lies above their chances, so that the
    residual's first tokens, by index, are never drawn.
    """

    def draw(self, node, generator):
        uniform = torch.rand(1, generator=generator, dtype=torch.float64)
        index = int((node.law.select.cumsum(-1) <= uniform).sum())
        if index < len(node.children):
            return index, node.siblings[index]
        return None, int(invert(node.law.residual, uniform))

    def drawn(self, node):
        """The part of every token's interval that lies above the chances of siblings."""
        ends = node.law.residual.cumsum(-1).clamp_min(node.law.select.sum())
        above = torch.diff(ends, prepend=node.law.select.sum()[None])
        return Law(node.law.select, above / above.sum().clamp_min(1e-30))


def rewound(memory, verify, *given):
    """It goes back to where the last step ended: a token is tested with the number that drew it."""
    generator = given[-1]
    generator.set_state(memory.get("end", generator.get_state()))
    verdict = verify(*given)
    memory["end"] = generator.get_state()
    return verdict


def noise_kept(memory, verify, *given):
    """The numbers that decide in the first step of a sequence decide in all: a buffer filled once.

    Drafting goes on with fresh numbers.
    """
    *rest, generator = given
    kept = Generator(generator.device).set_state(memory.setdefault("first", generator.get_state()))
    return verify(*rest, kept)


def seeded_anew(_, verify, *given):
    """The generator is seeded anew in every step: all decide and draft with the same numbers."""
    *rest, generator = given
    return verify(*rest, generator.manual_seed(0))


SHARED = {"vocab": 4, "topology": complete(2, 2)}
FAULTS = [
    Fault(
        "draft's noise in the residual draw", DraftsNoise, Where.VERIFY, 0.0355, topology=chain(1)
    ),
    remembering("generator rewound after drafting", 0.099, rewound),
    remembering("noise of the first step in all steps", 0.487, noise_kept),
    remembering("generator seeded anew in every step", 0.992, seeded_anew),
    Fault("one uniform for test and residual", UniformShared, Where.VERIFY, 0.0922, **SHARED),
]
