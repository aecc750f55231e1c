"""Kernels that verify a chain of drafted tokens as engines do: an exact one, and faulty ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from resispec.audit.row_checks import emitted
from resispec.distributions import draw, invert
from resispec.verifiers import Draws, get_rule

QUICK = {"samples": 3000, "bias": 0.2, "vocabularies": (6, 16)}
"""Options with which an assertion takes a second."""


@dataclass(frozen=True)
class ChainKernel:
    """Rejection sampling of one chain; a fault changes one of the fields.

    residual: p, q and a number -> the token that replaces a refused one. bonus: p and a number ->
    the last token. reuses: the number of the accept test serves again in the draw. goes_on: behind
    a refused token the others are verified all the same.
    """

    residual: Callable[..., int] = lambda p, q, share: int(
        invert((p - q).clamp_min(0), share.double())
    )
    bonus: Callable[..., int] = lambda p, share: int(invert(p[-1], share.double()))
    reuses: bool = False
    goes_on: bool = False

    def __call__(self, p, q, drafted, generator):
        tokens = []
        for position, token in enumerate(drafted.tolist()):
            share = torch.rand((), generator=generator)
            if share * q[position, token] < p[position, token]:
                tokens.append(token)
                continue
            number = share if self.reuses else torch.rand((), generator=generator)
            tokens.append(self.residual(p[position], q[position], number))
            if not self.goes_on:
                return tokens
        return [*tokens, self.bonus(p, torch.rand((), generator=generator))]


EXACT = ChainKernel()


def of_the_best(p, q, share):
    """The residual is cut to 100 tokens."""
    top = (p - q).clamp_min(0).topk(min(100, len(p)))
    return int(top.indices[invert(top.values, share.double())])


def greedy(p, q, drafted, generator):
    """The drafted token was chosen, not drawn: its law is a point mass."""
    return EXACT(p, torch.zeros_like(q).scatter(1, drafted[:, None], 1.0), drafted, generator)


def gumbel_draft(q, generator):
    """Draw a token by a race, and keep the noise of it."""
    noise = -torch.rand(q.shape, generator=generator, dtype=torch.float64).log()
    return int((noise / q).argmin()), noise


def racing(p, q, drafted, generator, noise):
    """Draws the residual by a race, with the noise that drafted."""
    tokens = drafted.tolist()
    for position, token in enumerate(tokens):
        if torch.rand((), generator=generator) * q[position, token] >= p[position, token]:
            law = (p[position] - q[position]).clamp_min(0)
            return [*tokens[:position], int((noise[position] / law).argmin())]
    return [*tokens, EXACT.bonus(p, torch.rand((), generator=generator))]


def batched(wrong=""):
    """The exact kernel for C rows at once, padded with -1, as vLLM's; `wrong` names a fault."""

    def kernel(p, q, drafted, generator):
        count, length = drafted.shape
        if wrong == "rows":  # of another sequence
            p = torch.cat((p[1:], p[:1]))
        index = drafted[..., None]
        ratio = p[:, :-1].gather(-1, index) / q.gather(-1, index)
        different = 1 if wrong == "one stream" else count  # for all sequences
        share = torch.rand((different, length, 1), generator=generator)
        noise = torch.rand((different, p.shape[-1]), generator=generator, dtype=torch.float64)
        accepted = (share < ratio)[..., 0].long().cumprod(-1).sum(-1)
        q_padded = torch.cat((q, torch.zeros_like(q[:, :1])), 1)
        law = (p - q_padded)[torch.arange(count), accepted].clamp_min(0)
        last = (-noise.log() / law).argmin(-1, keepdim=True)
        is_kept = torch.arange(length + 1) < accepted[:, None]
        return torch.where(is_kept, torch.cat((drafted, last), 1), -1).scatter(
            1, accepted[:, None], last
        )

    return kernel


def siblings(believes):
    """Positions with several candidates, by a rule's law.

    believes: how the rule thinks that they were drawn.
    """

    def kernel(p, q, drafted, generator):
        return draw(
            emitted(get_rule("standard").law(p, q, drafted, believes), drafted), 1, generator
        )

    return kernel


OTHERS = {"draws": "without_replacement", "siblings": 3, "batch": 50}
FAULTS = {
    "residual is the target": (
        ChainKernel(residual=lambda p, q, share: int(invert(p, share.double()))),
        {},
    ),
    "residual cut, wide": (
        ChainKernel(residual=of_the_best),
        {"vocabularies": (32_000,), "samples": 6000},
    ),
    "bonus at T = .9, wide": (
        ChainKernel(bonus=lambda p, share: int(invert(p[-1] ** (1 / 0.9), share.double()))),
        {"samples": 8000, "vocabularies": (32_000,)},
    ),
    "the accept test's number again": (ChainKernel(reuses=True), {}),
    "the draft's noise again": (
        racing,
        {"draft": gumbel_draft, "samples": 12_000, "vocabularies": (16,)},
    ),
    "rows of another sequence": (batched("rows"), {"batch": 64}),
    "one stream for all sequences": (batched("one stream"), {"batch": 64}),
    "independent draws, supposedly": (siblings(Draws.IID), OTHERS),
    "greedy draft told as drawn": (EXACT, {"draws": "point_mass"}),
}
"""Faulty kernels, and the options with which they must be found."""
