"""Kernels that verify a chain of drafted tokens as engines do: an exact one, and the same with faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from resispec.audit.row_checks import emitted
from resispec.distributions import draw
from resispec.verifiers import get_rule

QUICK = {"samples": 3000, "bias": 0.2, "vocabularies": (6, 16)}
"""Options with which an assertion takes a second."""


def uniform(generator, shape=()):
    return torch.rand(shape, generator=generator)


def pick(weights, share):
    """The first index whose cumulative weight exceeds this share of all; any positive sum."""
    below = weights.cumsum(-1, dtype=torch.float64)
    index = torch.searchsorted(below, share.double() * below[..., -1], right=True)
    return int(index.clamp_max(len(weights) - 1))


@dataclass(frozen=True)
class Kernel:
    """Rejection sampling of one chain; subclasses get one thing wrong."""

    def __call__(self, p, q, drafted, generator):
        tokens: list[int] = []
        for position, token in enumerate(drafted.tolist()):
            if self.accepts(p, q, position, token, generator):
                tokens.append(token)
                continue
            return [*tokens, self.residual(p[position], q[position], generator)]
        return [*tokens, self.bonus(p, generator)]

    def accepts(self, p, q, position, token, generator):
        return bool(uniform(generator) * q[position, token] < p[position, token])

    def residual(self, p, q, generator):
        return pick((p - q).clamp_min(0), uniform(generator))

    def bonus(self, p, generator):
        return pick(p[-1], uniform(generator))


class AlwaysAccepts(Kernel):
    def accepts(self, *_):
        return True


class AcceptsALittleMore(Kernel):
    def accepts(self, p, q, position, token, generator):
        return super().accepts(1.25 * p, q, position, token, generator)


class NotRenormalised(Kernel):
    """The residual's cumulative sum is compared with a number in [0, 1)."""

    def residual(self, p, q, generator):
        below = (p - q).clamp_min(0).cumsum(-1)
        return int(torch.searchsorted(below, uniform(generator), right=True).clamp_max(len(p) - 1))


class ResidualIsTarget(Kernel):
    def residual(self, p, q, generator):
        return super().residual(p, 0 * q, generator)


@dataclass(frozen=True)
class TopResidual(Kernel):
    size: int = 100

    def residual(self, p, q, generator):
        top = (p - q).clamp_min(0).topk(min(self.size, len(p)))
        return int(top.indices[pick(top.values, uniform(generator))])


@dataclass(frozen=True)
class BonusAt(Kernel):
    temperature: float

    def bonus(self, p, generator):
        return pick(p[-1] ** (1 / self.temperature), uniform(generator))


class StaleBonusRow(Kernel):
    """The bonus token is drawn from the row before its own."""

    def bonus(self, p, generator):
        return pick(p[-2], uniform(generator))


class NextRow(Kernel):
    """Every drafted token is compared with the target's next row."""

    def accepts(self, p, q, position, token, generator):
        return super().accepts(p[1:], q, position, token, generator)


class SameSeed(Kernel):
    """Every call starts its random numbers anew."""

    def __call__(self, p, q, drafted, generator):
        return super().__call__(p, q, drafted, generator.manual_seed(1))


class OneUniform(Kernel):
    """The number that refused a token draws the residual, too."""

    def __call__(self, p, q, drafted, generator):
        for position, token in enumerate(drafted.tolist()):
            share = uniform(generator)
            if share * q[position, token] >= p[position, token]:
                return [*drafted.tolist()[:position], pick((p[position] - q[position]).clamp_min(0), share)]
        return [*drafted.tolist(), self.bonus(p, generator)]


class SameUniformEverywhere(Kernel):
    """All drafted tokens are compared with one number."""

    def __call__(self, p, q, drafted, generator):
        share = uniform(generator)
        for position, token in enumerate(drafted.tolist()):
            if share * q[position, token] >= p[position, token]:
                return [*drafted.tolist()[:position], self.residual(p[position], q[position], generator)]
        return [*drafted.tolist(), self.bonus(p, generator)]


class GoesOn(Kernel):
    """A refused token is replaced, and what was drafted behind it is verified all the same."""

    def __call__(self, p, q, drafted, generator):
        tokens = [
            token
            if self.accepts(p, q, position, token, generator)
            else self.residual(p[position], q[position], generator)
            for position, token in enumerate(drafted.tolist())
        ]
        return [*tokens, self.bonus(p, generator)]


def accept_one(*given):
    """Emits what was drafted for one position."""
    return given[2][0]


def gumbel_draft(q, generator):
    """Draw a token by a race, and keep the noise of it."""
    noise = -torch.rand(q.shape, generator=generator, dtype=torch.float64).log()
    return int((noise / q).argmin()), noise


@dataclass(frozen=True)
class Racing(Kernel):
    """Draws the residual by a race, with the noise that drafted (a bug) or with new noise."""

    reuses: bool

    def __call__(self, p, q, drafted, generator, noise):
        for position, token in enumerate(drafted.tolist()):
            if not self.accepts(p, q, position, token, generator):
                residual = (p[position] - q[position]).clamp_min(0)
                used = noise[position] if self.reuses else gumbel_draft(q[position], generator)[1]
                return [*drafted.tolist()[:position], int((used / residual).argmin())]
        return [*drafted.tolist(), self.bonus(p, generator)]


def numpy_sampler(p, q, drafted, generator):
    """The exact kernel on arrays."""
    tokens: list[int] = []
    for row, other, token in zip(p, q, drafted, strict=False):
        if generator.random() * other[token] >= row[token]:
            residual = np.maximum(row.astype(np.float64) - other, 0)
            return [*tokens, generator.choice(len(row), p=residual / residual.sum())]
        tokens.append(int(token))
    last = p[-1].astype(np.float64)
    return np.array([*tokens, generator.choice(len(last), p=last / last.sum())])


@dataclass(frozen=True)
class Batched:
    """The exact kernel for C rows at once, padded with -1, as vLLM's; faults are named by `wrong`."""

    wrong: str = ""

    def __call__(self, p, q, drafted, generator) -> Any:
        count, length = drafted.shape
        if self.wrong == "rows":  # of another sequence
            p = torch.cat((p[1:], p[:1]))
        index = drafted[..., None]
        ratio = p[:, :-1].gather(-1, index) / q.gather(-1, index)
        different = 1 if self.wrong == "one stream" else count  # for all sequences
        share = torch.rand((different, length, 1), generator=generator)
        noise = torch.rand((different, p.shape[-1]), generator=generator, dtype=torch.float64)
        accepted = (share < ratio)[..., 0].long().cumprod(-1).sum(-1)
        rows = torch.arange(count)
        q_padded = torch.cat((q, torch.zeros_like(q[:, :1])), 1)
        law = (p[rows, accepted] - q_padded[rows, accepted]).clamp_min(0)
        last = (-noise.log() / law).argmin(-1, keepdim=True)
        tokens = torch.cat((drafted, last), 1)
        places = torch.arange(length + 1)
        tokens = torch.where(places < accepted[:, None], tokens, -1)
        return tokens.scatter(1, accepted[:, None], last)


class Greedy(Kernel):
    """The drafted token was chosen, not drawn: its law is a point mass."""

    def __call__(self, p, q, drafted, generator):
        q = torch.zeros_like(q).scatter(1, drafted[:, None], 1.0)
        return super().__call__(p, q, drafted, generator)


class Siblings:
    """Positions with several candidates, by a rule's law; `believes`: how it thinks that they were drawn."""

    def __init__(self, believes):
        self.believes = believes

    def __call__(self, p, q, drafted, generator):
        return draw(emitted(get_rule("standard").law(p, q, drafted, self.believes), drafted), 1, generator)
