"""The canonical decomposition with truncated linear programs: Khisti et al., arXiv 2410.18234.

A rule that knows p and q chooses one sibling, which is then tested with its own law in the place of
q. Written from an implementation of the authors' algorithm and the description in arXiv 2602.16994,
appendix B; the paper's own text was not at hand, so what else it truncates is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import Tensor

from resispec.distributions import normalise, null_mass, quotient
from resispec.errors import InvalidInput
from resispec.verifiers.base import Draws, DrawsKind, Law, require_draws
from resispec.verifiers.registry import register

Floats = NDArray[np.float64]


@register("khisti")
@dataclass(frozen=True)
class Khisti:
    """Each sibling in turn meets the winner so far, and the last winner is tested.

    size: number of tokens, those with the largest p - q1 q2, whose meetings a linear program
    decides; in other meetings the token wins that comes first in this order. The programs are
    solved on the host, one for each law and meeting. Raises InvalidInput for a size below 1.
    """

    size: int = 5
    reads_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InvalidInput(f"khisti: size is {self.size}; allowed: at least 1")

    def law(
        self, target_probs: Tensor, draft_probs: Tensor, siblings: Tensor, draws: DrawsKind
    ) -> Law:
        """See `SiblingRule.law`. Raises InvalidInput unless the draws are independent."""
        require_draws("khisti", draws, Draws.IID)
        size = target_probs.shape[-1]
        p, q = (
            probs.reshape(-1, size).double().cpu().numpy() for probs in (target_probs, draft_probs)
        )
        tokens = siblings.reshape(-1, siblings.shape[-1]).cpu().numpy()
        chances, laws = [], []
        for target, draft, row in zip(p, q / q.sum(-1, keepdims=True), tokens, strict=True):
            meetings = _meetings(target.tobytes(), draft.tobytes(), len(row), self.size)
            chances.append(_chances(meetings, row))
            laws.append(meetings[-1].law if meetings else draft)
        wins = torch.from_numpy(np.stack(chances)).to(target_probs).view(siblings.shape)
        proposal = torch.from_numpy(np.stack(laws)).to(target_probs).view(target_probs.shape)
        accept = quotient(target_probs, proposal).clamp_max(1).gather(-1, siblings)
        residual = (target_probs - proposal).clamp_min(0)
        return Law(wins * accept, normalise(residual, target_probs, null_mass(target_probs)))


@lru_cache(maxsize=16)  # equal laws follow one another in audits
def _meetings(target: bytes, draft: bytes, num_siblings: int, size: int) -> Sequence[_Meeting]:
    """The meetings of siblings in turn. target, draft: the bytes of laws (V,), float64."""
    p, q = np.frombuffer(target), np.frombuffer(draft)
    meetings, winner = list[_Meeting](), q  # the winner so far, at first a draft from q
    for _ in range(num_siblings - 1):
        meetings.append(_Meeting.of(p, winner, q, size))
        winner = meetings[-1].law
    return tuple(meetings)


def _chances(meetings: Sequence[_Meeting], tokens: NDArray[np.int64]) -> Floats:
    """The chance (B,) of every sibling to be the last winner."""
    chances = np.eye(len(tokens))[0]
    for newcomer, meeting in enumerate(meetings, start=1):
        stays = np.array(
            [meeting.first_wins(token, tokens[newcomer]) for token in tokens[:newcomer]]
        )
        chances[newcomer] = ((1 - stays) * chances[:newcomer]).sum()
        chances[:newcomer] *= stays
    return chances


class _Meeting(NamedTuple):
    """A meeting of a token drawn from q1 and a token drawn from q2, one of which wins.

    rank: (V,) the places of the tokens in decreasing order of p - q1 q2. upsets: (S, S) for two of
    the first S tokens, the chance that the later one wins. law: (V,) the law of the winner's token.
    """

    rank: NDArray[np.int64]
    upsets: Floats
    law: Floats

    @classmethod
    def of(cls, p: Floats, q1: Floats, q2: Floats, size: int) -> _Meeting:
        """The best meeting for p, by a linear program over the first `size` tokens."""
        order = np.argsort(q1 * q2 - p, kind="stable")
        a, b = q1[order], q2[order]
        law = a * b + a * _behind(b) + _behind(a) * b  # where the earlier token always wins
        size = min(size, len(p))
        first, second = np.triu_indices(size, 1)
        chances = a[first] * b[second] + a[second] * b[first]  # the chance of such a meeting
        shifts = _moved(p[order][:size], law[:size], first, second, chances)
        np.subtract.at(law, first, shifts)
        np.add.at(law, second, shifts)
        upsets = np.zeros((size, size))
        upsets[first, second] = np.divide(
            shifts, chances, out=np.zeros_like(chances), where=chances > 0
        )
        rank, by_token = np.empty_like(order), np.empty_like(law)
        rank[order], by_token[order] = np.arange(len(order)), law
        return cls(rank, upsets, by_token)

    def first_wins(self, one: int, other: int) -> float:
        """The chance that token `one` wins when it meets token `other`; 1 for equal tokens."""
        places = self.rank[one], self.rank[other]
        low, high = min(places), max(places)
        upset = self.upsets[low, high] if high < len(self.upsets) else 0.0
        return float(1 - upset if low == places[0] else upset)


def _behind(masses: Floats) -> Floats:
    """For each place, the mass of all later places."""
    return np.append(masses[::-1].cumsum()[::-1][1:], 0.0)


def _moved(
    p: Floats, law: Floats, first: NDArray[np.int64], second: NDArray[np.int64], chances: Floats
) -> Floats:
    """The mass (pairs,) that upsets move from earlier to later tokens to maximise sum min(p, law).

    The rule is exact whatever the program's precision, since it uses the law that these masses
    give.
    """
    size, pairs = len(p), len(chances)
    if np.isnan(law).any() or np.isnan(p).any():
        raise FloatingPointError("khisti: a law is nan")
    if not pairs:
        return chances
    # Variables: the moved masses, then z with z <= p and z <= law.
    change = np.zeros((size, pairs))
    change[first, np.arange(pairs)], change[second, np.arange(pairs)] = 1.0, -1.0
    solution = linprog(
        np.r_[np.zeros(pairs), -np.ones(size)],
        A_ub=np.hstack((change, np.eye(size))),
        b_ub=law,
        bounds=[*((0, limit) for limit in chances), *((0, limit) for limit in p)],
    )
    if solution.x is None:
        raise FloatingPointError(f"khisti: no solution of its linear program ({solution.message})")
    return np.clip(solution.x[:pairs], 0, chances)
